"""Random lives of whole runs: whatever happens, the count is right, and when faults stop everything comes to rest."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.commitment import Wish
from stoker.core.gang import OnNoCapacity
from stoker.core.ids import VolumeId
from stoker.core.job_facts import (
    FINISHED,
    AgentFailed,
    AskStop,
    CleanedUp,
    Cleanup,
    DetachVolumes,
    Exited,
    Heard,
    InstanceGone,
    Interrupted,
    Job,
    LimitExceeded,
    NoCapacity,
    Placed,
    Release,
    RemoveTask,
    Reserved,
    RunnerAccepted,
    S,
    Silent,
    StartTask,
    SubmitJob,
    TaskAccepted,
    Unregister,
)
from stoker.core.machine import Effect, Event, Refused
from stoker.core.policy import Disconnect, StopCriteria
from stoker.core.reason import JobReason, RetryEvent, RunReason
from stoker.core.retry import Retry
from stoker.core.run_facts import ACTIVE, AbortAsked, Broke, ReplicasWanted, StopAsked, Sweep, Swept
from stoker.core.run_facts import S as R
from stoker.core.schedule import Overlap, Schedule
from tests.core.living import Life, machine

ANSWERS: dict[type[Effect], Callable[[Job], Event]] = {
    StartTask: lambda job: TaskAccepted(attempt=job.attempt),
    SubmitJob: lambda job: RunnerAccepted(attempt=job.attempt),
    AskStop: lambda job: Exited(143, signal=15, attempt=job.attempt),
    RemoveTask: lambda job: CleanedUp(Cleanup.REMOVE, attempt=job.attempt),
    DetachVolumes: lambda job: CleanedUp(Cleanup.DETACH, attempt=job.attempt),
    Unregister: lambda job: CleanedUp(Cleanup.UNREGISTER, attempt=job.attempt),
    Release: lambda job: CleanedUp(Cleanup.RELEASE, attempt=job.attempt),
}

IMPLAUSIBLE: tuple[Callable[[Job], Event], ...] = (
    lambda job: Exited(3, attempt=job.attempt - 1),
    lambda job: TaskAccepted(),
    lambda job: RunnerAccepted(),
    lambda job: CleanedUp(Cleanup.REMOVE),
    lambda job: LimitExceeded(JobReason.INACTIVITY_DURATION_EXCEEDED),
    lambda job: InstanceGone(machine(99)),
    lambda job: NoCapacity("full"),
)
EVERY_TEN = Schedule(("*/10 * * * *",))
WORDS = (StopAsked(), AbortAsked(), Broke(RunReason.SERVER_ERROR, "the disk is full"), Swept())


def plausible(job: Job) -> list[Event]:
    """What the world may say of a job in this state."""
    where = job.instance_id or machine(job.id.int & 0xFF)
    placed = Placed(where, (0,), owned=job.node == 0, shim=job.replica != 1)
    trouble = [Interrupted(where), InstanceGone(where), Silent(), Heard()]
    ends: list[Event] = [Exited(0), Exited(0), Exited(1), Exited(42), Exited(137, signal=9, oom=True), *trouble]
    match job.state:
        case S.SUBMITTED:
            return [placed, placed, placed, Reserved(where, (0,)), NoCapacity("full"), *trouble]
        case S.PROVISIONING | S.PULLING:
            failed = AgentFailed(JobReason.CREATING_CONTAINER_ERROR, "no such image")
            return [*[TaskAccepted(), RunnerAccepted()] * 6, failed, Exited(2, setup=True), *ends]
        case S.RUNNING:
            idle = LimitExceeded(JobReason.INACTIVITY_DURATION_EXCEEDED)
            return [*ends, idle, AgentFailed(JobReason.EXECUTOR_ERROR)]
        case S.TERMINATING:
            return [CleanedUp(job.cleanup or Cleanup.REMOVE), Exited(143, signal=15), *trouble]
    return ends


retries = st.none() | st.builds(
    Retry,
    on_events=st.frozensets(st.sampled_from(list(RetryEvent)), min_size=1),
    duration_s=st.none() | st.sampled_from([0.0, 60.0, 3600.0]),
    max_attempts=st.none() | st.integers(1, 4),
    on_exit_codes=st.frozensets(st.sampled_from([42, 137])),
)
policies = st.fixed_dictionaries(
    {
        "replicas": st.sampled_from([1, 1, 2, 3, 0]),
        "nodes": st.integers(1, 2),
        "retry": retries,
        "schedule": st.sampled_from([None, None, None, EVERY_TEN, replace(EVERY_TEN, overlap=Overlap.QUEUE)]),
        "stop_criteria": st.sampled_from(StopCriteria),
        "on_no_capacity": st.sampled_from(OnNoCapacity),
        "disconnect": st.none() | st.just(Disconnect(60.0, 90.0)),
        "stop_duration_s": st.sampled_from([0.0, 10.0, 3600.0]),
        "max_duration_s": st.none() | st.just(7200.0),
        "start_timeout_s": st.none() | st.just(300.0),
        "volumes": st.sampled_from(((), (VolumeId(UUID(int=77)),))),
        "service": st.booleans(),
    }
)


class Storm:
    """Does to a life whatever the seed says, and then lets everything go well."""

    def __init__(self, policy: dict[str, Any]) -> None:
        self.life = Life(**policy)
        self.stubborn = False
        """Programs do not listen when they are asked to stop."""

    def current(self, wish: Wish) -> bool:
        record = self.life.run if wish.kind == "run" else self.life.family.jobs[wish.record.id]
        return bool(record.phase == wish.record.phase)

    def fulfil(self, place: int) -> None:
        wish = self.life.wishes.pop(place)
        if not self.current(wish):
            return
        if self.stubborn and isinstance(wish.effect, AskStop):
            return
        if wish.kind == "job":
            self.life.tell(wish.record, ANSWERS[type(wish.effect)](wish.record))
        elif isinstance(wish.effect, Sweep):
            self.life.ask(Swept())

    def rage(self, dice: Random, steps: int) -> None:
        for _ in range(steps):
            known = dict(self.life.family.jobs)
            try:
                self.happen(dice)
            except Refused:
                assert self.life.family.jobs == known

    def happen(self, dice: Random) -> None:
        life = self.life.wait(dice.choice([0.0, 0.0, 0.0, 1.0, 30.0, 700.0]))
        unfinished = [job for job in life.jobs if job.state not in FINISHED]
        match dice.choices(["news", "time", "wish", "scale", "word", "strange"], [50, 10, 25, 5, 1, 5])[0]:
            case "news" if unfinished:
                job = dice.choice(unfinished)
                life.tell(job, dice.choice(plausible(job)))
            case "time":
                life.rings()
            case "wish" if life.wishes:
                self.fulfil(dice.randrange(len(life.wishes)))
            case "scale" if life.run.policy.service:
                life.ask(ReplicasWanted(dice.randrange(4)))
            case "word":
                life.ask(dice.choice(WORDS))
            case "strange" if life.jobs:
                job = dice.choice(life.jobs)
                life.tell(job, dice.choice(IMPLAUSIBLE)(job))

    def place(self) -> bool:
        """As the placer does: not before every older submission of the replica has finished."""
        life = self.life
        for job in life.jobs:
            replica = [one for one in life.jobs if one.replica == job.replica]
            older = [one for one in replica if not one.latest]
            ready = all(one.ready_at is None or one.state is not S.SUBMITTED for one in replica if one.latest)
            if job.state is S.SUBMITTED and ready and all(one.state in FINISHED for one in older):
                life.tell(job, Placed(job.instance_id or machine(7), (0,)))
                return True
        return False

    def end_program(self) -> bool:
        running = [job for job in self.life.jobs if job.state is S.RUNNING and not job.policy.service]
        for job in running[:1]:
            self.life.tell(job, Exited(0))
        return bool(running)

    def calm(self) -> None:
        """Faults stop: agents answer, wishes are fulfilled, machines are there, programs end."""
        for job in self.life.jobs:
            self.life.tell(job, Heard())
        for _ in range(2_000):
            if self.life.wishes:
                self.fulfil(0)
            elif not (self.place() or self.end_program() or self.backoff_ends()):
                return
        raise AssertionError("it does not come to rest")

    def backoff_ends(self) -> bool:
        due = any(at <= self.life.now for at, who in self.life.deadlines() if who is not None)
        waits = any(job.state is S.SUBMITTED and job.ready_at is not None for job in self.life.jobs)
        return (due or waits or self.life.run.resume_at is not None) and self.life.rings()


seeds = st.integers(0, 2**32)


@settings(max_examples=250, deadline=None)
@given(policies, seeds)
def test_whatever_happens_everything_comes_to_rest_when_faults_stop(policy: dict[str, Any], seed: int) -> None:
    """A week in the life of a cluster, in any order: no run waits for something that will not come."""
    storm = Storm(policy)
    storm.rage(Random(seed), 120)
    storm.calm()
    run = storm.life.run
    assert run.tally.unfinished == (run.tally.running if run.state is R.RUNNING else 0)
    match run.state:
        case R.PENDING:
            assert run.trigger_at is not None or run.replicas == 0
        case R.RUNNING:
            assert run.policy.service
        case state:
            assert state not in (*ACTIVE, R.TERMINATING)


@settings(max_examples=100, deadline=None)
@given(policies, seeds, st.sampled_from([StopAsked(), AbortAsked()]))
def test_a_stop_ends_every_run_whatever_happened_before(policy: dict[str, Any], seed: int, word: Event) -> None:
    """Somebody has had enough: the run ends, scheduled or not, and an abort waits for no grace."""
    storm = Storm(policy)
    storm.rage(Random(seed), 80)
    storm.life.ask(word)
    storm.stubborn, at = isinstance(word, AbortAsked), storm.life.now
    storm.calm()
    assert storm.life.run.state in (R.TERMINATED, R.FAILED, R.DONE)
    assert storm.life.now == at
