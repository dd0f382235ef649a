"""Runs, jobs and instances in one line each, and a `Life`: a run with its jobs whose every step is checked."""

from collections import Counter
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from stoker.core import job as job_table
from stoker.core import run as run_table
from stoker.core.block import Blocks
from stoker.core.commitment import Moved, Outcome, Wish
from stoker.core.family import Family, bear, found, step
from stoker.core.ids import InstanceId, JobId, ProjectId, RunId
from stoker.core.instance_facts import Instance
from stoker.core.job_facts import ACTIVE, FINISHED, Job, Placed, RunnerAccepted, S, TaskAccepted
from stoker.core.machine import Effect, Event, Machine, Send, TimeUp
from stoker.core.policy import Policy
from stoker.core.reason import RetryEvent
from stoker.core.resources import Capacity
from stoker.core.retry import Fate, Retry
from stoker.core.run_facts import FINISHED as RUN_FINISHED
from stoker.core.run_facts import Run, Tally, counted_as
from stoker.core.run_facts import S as R

RUN_ID = RunId(UUID(int=0x5EED))
PROJECT_ID = ProjectId(UUID(int=1))
ALWAYS = Retry(frozenset(RetryEvent))
OUTCOME = ("state", "reason", "message", "exit_code", "exit_signal", "entered_at", "instance_id", "gone")


def machine(n: int) -> InstanceId:
    return InstanceId(UUID(int=n))


def a_job(n: int = 1, **fields: Any) -> Job:
    policy = fields.pop("policy", Policy())
    return Job(JobId(UUID(int=n)), RUN_ID, 0, 0, 1, policy, 0.0, **fields)


def an_instance(total: int = 4, held: dict[int, tuple[int, ...]] | None = None, **fields: Any) -> Instance:
    holding = {JobId(UUID(int=n)): numbers for n, numbers in (held or {}).items()}
    blocks = Blocks(Capacity(4, 8192, 1000), total, holding)
    return Instance(machine(9), None, "dummy", blocks, **fields)


def walk(table: Machine[Any], record: Any, *events: Event, now: float = 0.0) -> tuple[Any, list[Effect], list[Send]]:
    """Each event at the same moment; what all of them left behind."""
    effects: list[Effect] = []
    sends: list[Send] = []
    for event in events:
        made = table.step(record, event, now)
        record, effects, sends = made.record, [*effects, *made.effects], [*sends, *made.sends]
    return record, effects, sends


class Life:
    """A run with its jobs, all of them loaded, and the wishes that nobody has fulfilled yet."""

    def __init__(self, now: float = 0.0, **policy: Any) -> None:
        self.now = now
        self.wishes: list[Wish] = []
        self.sends: list[Send] = []
        self.family, outcome = bear(found(RUN_ID, PROJECT_ID, "r", Policy(**policy), now), now)
        self._check({}, self.family.run, outcome)

    @property
    def run(self) -> Run:
        return self.family.run

    @property
    def jobs(self) -> list[Job]:
        return list(self.family.jobs.values())

    def job(self, replica: int = 0, node: int = 0) -> Job:
        """The latest submission."""
        (one,) = (job for job in self.jobs if job.latest and (job.replica, job.node) == (replica, node))
        return one

    def tries(self, replica: int = 0, node: int = 0) -> list[Job]:
        """Every submission, the first one first."""
        mine = [job for job in self.jobs if (job.replica, job.node) == (replica, node)]
        return sorted(mine, key=lambda job: job.attempt)

    def states(self) -> list[S]:
        """Of the latest submissions, by replica and node."""
        latest = [job for job in self.jobs if job.latest]
        return [job.state for job in sorted(latest, key=lambda job: (job.replica, job.node))]

    def tell(self, job: Job, *events: Event) -> Outcome:
        for event in events:
            outcome = self._step(job.id, event)
        return outcome

    def ask(self, event: Event) -> Outcome:
        return self._step(None, event)

    def wait(self, seconds: float) -> "Life":
        self.now += seconds
        return self

    def starts(self, *jobs: Job) -> "Life":
        """Placed, taken by shim and runner: RUNNING."""
        for job in jobs or [job for job in self.jobs if job.state is S.SUBMITTED]:
            self.tell(job, Placed(machine(job.id.int & 0xFFFF), (0,)), TaskAccepted(), RunnerAccepted())
        return self

    def deadlines(self) -> list[tuple[float, JobId | None]]:
        """Who waits for the clock; None is the run."""
        moments = [(job_table.deadline(job), job.id) for job in self.jobs]
        all_of_them: list[tuple[float | None, JobId | None]] = [(run_table.deadline(self.run), None), *moments]
        return [(at, who) for at, who in all_of_them if at is not None]

    def rings(self) -> bool:
        """Time passes until the next deadline; the record changes or its deadline does, so no timer spins."""
        if not self.deadlines():
            return False
        at, who = min(self.deadlines(), key=lambda one: one[0])
        self.now = max(self.now, at)
        outcome = self._step(who, TimeUp())
        again = {name: moment for moment, name in self.deadlines()}.get(who)
        assert outcome.moved or again is None or again > self.now, "a deadline that TimeUp does not serve"
        return True

    def _step(self, target: JobId | None, event: Event) -> Outcome:
        jobs, run = dict(self.family.jobs), self.run
        outcome = step(self.family, target, event, self.now)
        self._check(jobs, run, outcome)
        return outcome

    def _check(self, jobs: dict[JobId, Job], run: Run, outcome: Outcome) -> None:
        self.wishes += outcome.wishes
        self.sends += outcome.sends
        check_outcome(outcome.moved)
        check_family(self.family)
        for id, before in jobs.items():
            if before.state in FINISHED:
                after = self.family.jobs[id]
                assert [getattr(before, name) for name in OUTCOME] == [getattr(after, name) for name in OUTCOME]
        if run.state in RUN_FINISHED:
            assert self.run == run


def check_outcome(moved: Iterable[Moved]) -> None:
    """Nobody assigns a finished status except the terminating phase, and nothing leaves one."""
    for one in moved:
        finished = {"job": FINISHED, "run": RUN_FINISHED}[one.kind]
        if one.before is None:
            assert one.after.state not in finished
        elif one.before.state is not one.after.state:
            assert one.before.state not in finished
            assert one.after.state not in finished or one.before.state.name == "TERMINATING"


def check_family(family: Family) -> None:
    run, jobs = family.run, list(family.jobs.values())
    assert run.tally == recount(jobs), "the tally is not what the jobs are"
    latest = Counter((job.replica, job.node) for job in jobs if job.latest)
    assert set(latest.values()) <= {1}
    assert len({(job.replica, job.node, job.attempt) for job in jobs}) == len(jobs)
    tries = {(job.replica, job.attempt) for job in jobs if job.latest}
    assert len(tries) == len({replica for replica, _ in tries}), "a replica is tried again as a whole"
    if run.state in RUN_FINISHED:
        assert all(job.state in FINISHED for job in jobs)
    for job in jobs:
        assert (job.state in ACTIVE) == (job.fate is Fate.OPEN)
    if run.state in (R.PENDING, R.SUBMITTED, R.PROVISIONING, R.RUNNING):
        assert run.state is derived([job for job in jobs if job.latest])


def recount(jobs: Iterable[Job]) -> Tally:
    jobs = list(jobs)
    counts: dict[str, Any] = Counter(counted_as(job) for job in jobs if job.latest)
    unfinished = sum(job.state not in FINISHED for job in jobs)
    master = any(job.latest and (job.replica, job.node) == (0, 0) and job.fate is Fate.DONE for job in jobs)
    return Tally(**counts, unfinished=unfinished, master_done=master)


def derived(latest: list[Job]) -> R:
    """The derivation as the contract writes it, said a second time: rules 3, 4, 5, and 7 or 8."""
    states = {job.state for job in latest}
    if S.RUNNING in states:
        return R.RUNNING
    if states & {S.PROVISIONING, S.PULLING}:
        return R.PROVISIONING
    return R.SUBMITTED if S.SUBMITTED in states else R.PENDING
