"""A run and its jobs are one aggregate: a job's news may move the run, and the run's orders its jobs.

Theory of operation. `step` works through a queue of events. A job's step is followed by `JobsChanged` to the
run when the job counts differently than before; the run's rows answer with orders, which become events of
the jobs that are loaded. `JobsChanged` is made when its turn comes, not when the job moved: orders in between
may have replaced the job. A run may have more jobs than are loaded: the tally knows about all of them, and
whatever an order could not reach is asked for as `Sweep`, which comes back with the next page.
"""

from collections import deque
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, assert_never

from stoker.core.backoff import delay_s
from stoker.core.commitment import Moved, Outcome, Wish
from stoker.core.errors import Broken
from stoker.core.evolve import evolve
from stoker.core.ids import JobId, ProjectId, RunId, uuid7
from stoker.core.job import JOB
from stoker.core.job_end import max_duration_at
from stoker.core.job_facts import ACTIVE, FINISHED, EndAsked, Gathered, GraceCut, Job, Parted, S, Warn
from stoker.core.machine import Event, Send
from stoker.core.policy import Policy
from stoker.core.reason import JobReason
from stoker.core.retry import FIRST_TRY, Budget, Fate
from stoker.core.run import RUN
from stoker.core.run_facts import (
    CutGrace,
    EndJobs,
    EndReplica,
    JobsChanged,
    Order,
    Repolicy,
    Resubmit,
    Run,
    Scale,
    Sweep,
    counted_as,
)
from stoker.core.run_facts import S as R
from stoker.core.schedule import next_after
from stoker.core.startup import may_begin
from stoker.core.warning import Deadline

MAX_EVENTS = 100_000
"""More events than this from one are a loop in the tables."""


@dataclass(frozen=True, slots=True)
class _Counted(Event):
    """In the queue only: this job counts differently than before."""

    job_id: JobId


@dataclass(slots=True)
class Family:
    run: Run
    jobs: dict[JobId, Job]
    partial: bool = False
    """The page of jobs that a run-wide event loaded was full: there may be more."""

    @property
    def complete(self) -> bool:
        """Is the latest submission of every job here?"""
        tally = self.run.tally
        return sum(job.latest for job in self.jobs.values()) == tally.contributing + tally.gone


def found(run_id: RunId, project_id: ProjectId, name: str, policy: Policy, now: float) -> Run:
    """A run as it is accepted; `bear` makes its first jobs in the same commit."""
    waits = policy.schedule is not None or policy.replicas == 0
    return Run(
        id=run_id, project_id=project_id, name=name, policy=policy, submitted_at=now, entered_at=now,
        state=R.PENDING if waits else R.SUBMITTED, replicas=policy.replicas, round=0 if policy.schedule else 1,
        trigger_at=next_after(policy.schedule, now) if policy.schedule else None,
    )  # fmt: skip


def bear(run: Run, now: float) -> tuple[Family, Outcome]:
    """The first commit of a run: its row and, unless it waits for something, its jobs."""
    family, outcome = Family(run, {}), Outcome()
    outcome.moved.append(Moved("run", None, run, None, None))
    if run.state is R.SUBMITTED:
        _Stepping(family, outcome, now).scale()
    return family, outcome


def step(family: Family, target: JobId | None, event: Event, now: float) -> Outcome:
    """Changes `family` in place; `target` None means the run itself."""
    stepping = _Stepping(family, Outcome(), now)
    stepping.queue.append((target, event))
    stepping.drain()
    stepping.sweep()
    return stepping.outcome


def job_id(run: Run, replica: int, node: int, attempt: int, now: float) -> JobId:
    """Made without dice: the same submission of the same run has the same random part."""
    digest = blake2b(f"{run.id}/{replica}/{node}/{attempt}".encode(), digest_size=10).digest()
    return JobId(uuid7(now, int.from_bytes(digest, "big")))


class _Stepping:
    def __init__(self, family: Family, outcome: Outcome, now: float) -> None:
        self.family, self.outcome, self.now = family, outcome, now
        self.queue: deque[tuple[JobId | None, Event]] = deque()
        self.ordered = False
        self.cut = False

    def drain(self) -> None:
        for _ in range(MAX_EVENTS):
            if not self.queue:
                return
            target, event = self.queue.popleft()
            if isinstance(event, _Counted):
                # While it ends, one more of ten thousand that has ended means nothing; the last one does.
                if self.family.run.state is not R.TERMINATING or not self.family.run.tally.unfinished:
                    self.step_run(self.changed(self.family.jobs[event.job_id]))
            elif target is None:
                self.step_run(event)
            else:
                self.step_job(target, event)
        raise Broken(f"run {self.family.run.id}: its tables do not come to rest")

    def step_job(self, target: JobId, event: Event) -> None:
        before = self.family.jobs[target]
        step = self.outcome.follow("job", JOB, before, event, self.now)
        if step.row is None:
            return
        after: Job = step.record
        self.put(before, after)
        if after.policy.nodes > 1 and after.latest:
            if after.state is not before.state:
                self.gather(before, after)
            elif before.instance_id is not None and after.instance_id is None:
                self.part(after)
        for send in step.sends:
            self.send(send)
        finished = after.state is not before.state and before.state is S.TERMINATING
        if finished or counted_as(before) != counted_as(after):
            self.queue.append((None, _Counted(after.id)))

    def gather(self, before: Job, after: Job) -> None:
        """Tells the nodes that may begin by this step, and might not before it."""
        others = [self.family.jobs[id] for id in self.replicas[after.replica] if id != after.id]
        others = [job for job in others if job.latest]
        if len(others) + 1 == after.policy.nodes:
            for id in sorted(may_begin([*others, after]) - may_begin([*others, before])):
                self.queue.append((id, Gathered()))

    def part(self, job: Job) -> None:
        """Half a replica is none: what is kept for its other nodes would wait for this one, and others for that."""
        for id in self.replicas[job.replica]:
            other = self.family.jobs[id]
            if other.latest and other.state is S.SUBMITTED and other.instance_id is not None:
                self.queue.append((id, Parted()))

    def send(self, send: Send) -> None:
        # To itself at the head: a job that is released finishes before anybody looks at it.
        if send.kind == "job":
            self.queue.appendleft((JobId(send.id), send.event))
        else:
            self.outcome.sends.append(send)

    def put(self, before: Job | None, after: Job) -> None:
        run = self.family.run
        self.family.jobs[after.id] = after
        # Also when the job counts as it did: who finds the run's version unchanged knows that its jobs are too.
        changes: dict[str, Any] = {"tally": run.tally.moved(before, after), "version": run.version + 1}
        if after.state in FINISHED:
            ended_at = self.now if after.exited_at is None else after.exited_at
            changes["ended_at"] = max(ended_at, run.ended_at or ended_at)
        self.family.run = evolve(run, changes)

    @cached_property
    def replicas(self) -> dict[int, list[JobId]]:
        """Made once a step: to look through all jobs for each that changed would square them."""
        ids: dict[int, list[JobId]] = {}
        for job in self.family.jobs.values():
            ids.setdefault(job.replica, []).append(job.id)
        return ids

    def changed(self, job: Job) -> JobsChanged:
        replica = [other for id in self.replicas[job.replica] if (other := self.family.jobs[id]).latest]
        return JobsChanged(
            replica=job.replica,
            replica_active=sum(other.state in ACTIVE for other in replica),
            replica_retry=any(other.fate is Fate.RETRY for other in replica),
            replica_done=sum(other.fate is Fate.DONE for other in replica),
            # A submission that was replaced has no say in the outcome any more.
            fate=job.fate if job.latest else Fate.OPEN,
            reason=job.reason,
            exit_code=job.exit_code,
            message=job.message,
            ran_s=job.ran_s(self.now),
            budget=job.budget,
        )

    def step_run(self, event: Event) -> None:
        wishes, before = len(self.outcome.wishes), self.family.run
        step = self.outcome.follow("run", RUN, self.family.run, event, self.now)
        if step.row is None:
            return
        self.family.run = step.record
        self.ordered |= before.state is not step.record.state
        orders = [wish.effect for wish in self.outcome.wishes[wishes:] if isinstance(wish.effect, Order)]
        if not orders:
            return
        self.outcome.wishes[wishes:] = [w for w in self.outcome.wishes[wishes:] if not isinstance(w.effect, Order)]
        for order in orders:
            self.carry_out(order)
        self.ordered = True
        # Orders may have changed nothing (no job was active): the run still has to look at itself once.
        self.queue.append((None, JobsChanged(replica=-1, replica_active=0, replica_retry=False)))

    def sweep(self) -> None:
        """At the end, and again when the state has moved: a wish of an earlier phase is not current any more."""
        if self.ordered and self.unreached():
            self.outcome.wishes.append(Wish("run", self.family.run, Sweep(cut=self.cut)))

    def unreached(self) -> bool:
        """Is there a job that the orders meant and that is not loaded?"""
        run = self.family.run
        if run.state is not R.TERMINATING:
            return False
        # Only an abort has something to say to those that are in their grace.
        return run.tally.active > 0 or (self.family.partial and self.cut)

    def carry_out(self, order: Order) -> None:
        jobs = list(self.family.jobs.values())
        match order:
            case EndJobs(reason=reason):
                for job in jobs:
                    if job.state in ACTIVE:
                        self.step_job(job.id, EndAsked(reason))
            case CutGrace():
                self.cut = True
                for job in jobs:
                    if job.state is S.TERMINATING:
                        self.step_job(job.id, GraceCut())
            case Repolicy():
                self.repolicy([job for job in jobs if job.state not in FINISHED])
            case EndReplica(replica=replica, budget=budget):
                self.end_replica([job for job in jobs if job.latest and job.replica == replica], budget)
            case Resubmit(in_place=in_place):
                self.resubmit(in_place)
            case Scale():
                self.scale()
            case _:
                assert_never(order)  # type: ignore[arg-type]

    def end_replica(self, replica: list[Job], budget: Budget) -> None:
        """A node that is done already counts for nothing when its replica is tried again."""
        ask = EndAsked(
            JobReason.TERMINATED_BY_SERVER, fate=Fate.RETRY, budget=budget, message="another node of its replica failed"
        )
        for job in replica:
            if job.state in ACTIVE:
                self.step_job(job.id, ask)
            elif job.fate is Fate.DONE:
                self.amend(job, fate=Fate.RETRY, budget=budget)

    def repolicy(self, jobs: list[Job]) -> None:
        """Saved, so that their deadlines are computed anew."""
        policy = self.family.run.policy
        for job in jobs:
            # The time in which it was held does not count as waiting for a machine.
            released = job.state is S.SUBMITTED and job.policy.hold and not policy.hold
            self.amend(job, policy=policy, entered_at=self.now if released else job.entered_at)
            if job.state is S.RUNNING and job.policy.max_duration_s != policy.max_duration_s:
                # Its runner counts too, also while the server is away.
                after = self.family.jobs[job.id]
                self.outcome.wishes.append(Wish("job", after, Warn(max_duration_at(after), Deadline.MAX_DURATION)))

    def resubmit(self, in_place: bool) -> None:
        run = self.family.run
        for job in list(self.family.jobs.values()):
            if job.latest and job.replica < run.replicas and (job.fate is Fate.RETRY or job.round < run.round):
                self.replace(job, in_place)

    def replace(self, job: Job, in_place: bool = False) -> None:
        run = self.family.run
        self.amend(job, latest=False)
        budget = job.budget if job.round == run.round else FIRST_TRY
        waits = in_place and budget.streak > 1
        ready_at = self.now + delay_s(budget.streak - 2, run.jitter(budget.streak)) if waits else None
        self.submit(job.replica, job.node, job.attempt + 1, budget, ready_at)

    def amend(self, job: Job, **fields: Any) -> None:
        """Changes how a job counts; its state and its outcome stay what they are."""
        after = evolve(job, fields | {"version": job.version + 1})
        self.outcome.moved.append(Moved("job", job, after, None, None))
        self.put(job, after)

    def submit(self, replica: int, node: int, attempt: int, budget: Budget, ready_at: float | None = None) -> None:
        run = self.family.run
        job = Job(
            id=job_id(run, replica, node, attempt, self.now), run_id=run.id, replica=replica, node=node,
            attempt=attempt, policy=run.policy, submitted_at=ready_at or self.now, entered_at=self.now, budget=budget,
            round=run.round, ready_at=ready_at,
        )  # fmt: skip
        self.outcome.moved.append(Moved("job", None, job, None, None))
        self.replicas.setdefault(replica, []).append(job.id)
        self.put(None, job)
        self.queue.append((None, _Counted(job.id)))

    def scale(self) -> None:
        run = self.family.run
        if not self.family.complete:
            return
        latest = {(job.replica, job.node): job for job in self.family.jobs.values() if job.latest}
        for job in latest.values():
            if job.replica < run.replicas:
                continue
            if job.state in ACTIVE:
                self.step_job(job.id, EndAsked(JobReason.SCALED_DOWN, fate=Fate.GONE))
            elif job.fate is not Fate.GONE:
                self.amend(job, fate=Fate.GONE)
        for replica in run.policy.numbers(run.replicas):
            for node in range(run.policy.nodes):
                job_there = latest.get((replica, node))
                if job_there is None:
                    self.submit(replica, node, 1, FIRST_TRY)
                elif job_there.fate is Fate.GONE:
                    self.replace(job_there)
