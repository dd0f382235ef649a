"""Random lives of whole runs: whatever happens, the count is right, and when faults stop everything comes to rest."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.living import Life, machine

from stoker.core.commitment import Wish
from stoker.core.gang import OnNoCapacity
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

ANSWERS: dict[type[Effect], Callable[[Job], Event]] = {
    StartTask: lambda job: TaskAccepted(attempt=job.attempt),
    SubmitJob: lambda job: RunnerAccepted(attempt=job.attempt),
    AskStop: lambda job: Exited(143, signal=15, attempt=job.attempt),
    RemoveTask: lambda job: CleanedUp(Cleanup.REMOVE, attempt=job.attempt),
    DetachVolumes: lambda job: CleanedUp(Cleanup.DETACH, attempt=job.attempt),
    Unregister: lambda job: CleanedUp(Cleanup.UNREGISTER, attempt=job.attempt),
    Release: lambda job: CleanedUp(Cleanup.RELEASE, attempt=job.attempt),
}

NEWS: dict[str, Callable[[Job], Event]] = {
    "placed": lambda job: Placed(machine(job.id.int & 0xFF), (0,), owned=job.node == 0, shim=job.replica != 1),
    "reserved": lambda job: Reserved(machine(job.id.int & 0xFF), (0,)),
    "no capacity": lambda job: NoCapacity("full"),
    "task accepted": lambda job: TaskAccepted(),
    "runner accepted": lambda job: RunnerAccepted(),
    "exit 0": lambda job: Exited(0),
    "exit 1": lambda job: Exited(1),
    "exit 42": lambda job: Exited(42),
    "killed": lambda job: Exited(137, signal=9, oom=True),
    "setup": lambda job: Exited(2, setup=True),
    "agent failed": lambda job: AgentFailed(JobReason.CREATING_CONTAINER_ERROR, "no such image"),
    "idle": lambda job: LimitExceeded(JobReason.INACTIVITY_DURATION_EXCEEDED),
    "silent": lambda job: Silent(),
    "heard": lambda job: Heard(),
    "interrupted": lambda job: Interrupted(machine(job.id.int & 0xFF)),
    "gone": lambda job: InstanceGone(machine(job.id.int & 0xFF)),
    "cleaned": lambda job: CleanedUp(job.cleanup or Cleanup.REMOVE),
    "late": lambda job: Exited(3, attempt=job.attempt - 1),
}
HEALTHY = ("placed", "task accepted", "runner accepted", "exit 0")
WORDS: dict[str, Event] = {
    "stop": StopAsked(),
    "abort": AbortAsked(),
    "broke": Broke(RunReason.SERVER_ERROR, "the disk is full"),
    "swept": Swept(),
}

retries = st.none() | st.builds(
    Retry,
    on_events=st.frozensets(st.sampled_from(list(RetryEvent)), min_size=1),
    duration_s=st.none() | st.sampled_from([0.0, 60.0, 3600.0]),
    max_attempts=st.none() | st.integers(1, 4),
    on_exit_codes=st.frozensets(st.sampled_from([42, 137])),
)
policies = st.fixed_dictionaries(
    {
        "replicas": st.integers(0, 3),
        "nodes": st.integers(1, 2),
        "retry": retries,
        "schedule": st.none() | st.builds(Schedule, st.just(("*/10 * * * *",)), overlap=st.sampled_from(Overlap)),
        "stop_criteria": st.sampled_from(StopCriteria),
        "on_no_capacity": st.sampled_from(OnNoCapacity),
        "disconnect": st.none() | st.just(Disconnect(60.0, 90.0)),
        "stop_duration_s": st.sampled_from([0.0, 10.0, 3600.0]),
        "max_duration_s": st.none() | st.just(7200.0),
        "start_timeout_s": st.none() | st.just(300.0),
        "volumes": st.booleans(),
        "service": st.booleans(),
    }
)


class Storm:
    """Does to a life whatever the seed says, and then lets everything go well."""

    def __init__(self, policy: dict[str, Any]) -> None:
        self.life = Life(**policy)

    def current(self, wish: Wish) -> bool:
        record = self.life.run if wish.kind == "run" else self.life.family.jobs[wish.record.id]
        return bool(record.phase == wish.record.phase)

    def fulfil(self, place: int) -> None:
        wish = self.life.wishes.pop(place % len(self.life.wishes))
        if not self.current(wish):
            return
        if wish.kind == "job":
            self.life.tell(wish.record, ANSWERS[type(wish.effect)](wish.record))
        elif isinstance(wish.effect, Sweep):
            self.life.ask(Swept())

    def happen(self, what: str, whom: int, seconds: float) -> None:
        life = self.life.wait(seconds)
        known = dict(life.family.jobs)
        try:
            if what == "time":
                life.rings()
            elif what == "wish" and life.wishes:
                self.fulfil(whom)
            elif what in WORDS:
                life.ask(WORDS[what])
            elif what == "scale" and life.run.policy.service:
                life.ask(ReplicasWanted(whom % 4))
            elif what in NEWS and life.jobs:
                job = life.jobs[whom % len(life.jobs)]
                life.tell(job, NEWS[what](job))
        except Refused:
            assert life.family.jobs == known

    def place(self) -> bool:
        """As the placer does: not before every older submission of the replica has finished."""
        life = self.life
        for job in life.jobs:
            older = [one for one in life.jobs if one.replica == job.replica and not one.latest]
            if job.state is S.SUBMITTED and all(one.state in FINISHED for one in older):
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
        return self.life.run.resume_at is not None and self.life.rings()


steps = st.lists(
    st.tuples(
        st.sampled_from([*NEWS, *HEALTHY * 4, *WORDS, "scale", "scale", "time", "time", "wish", "wish", "wish"]),
        st.integers(0, 60),
        st.sampled_from([0.0, 0.0, 1.0, 30.0, 700.0]),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(policies, steps)
def test_whatever_happens_everything_comes_to_rest_when_faults_stop(
    policy: dict[str, Any], happenings: list[tuple[str, int, float]]
) -> None:
    """A week in the life of a cluster, in any order: no run waits for something that will not come."""
    storm = Storm(policy)
    for what, whom, seconds in happenings:
        storm.happen(what, whom, seconds)
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
@given(policies, steps)
def test_a_stop_ends_every_run_whatever_happened_before(
    policy: dict[str, Any], happenings: list[tuple[str, int, float]]
) -> None:
    """Somebody has had enough: after `stop` the run ends, scheduled or not."""
    storm = Storm(policy)
    for what, whom, seconds in happenings:
        storm.happen(what, whom, seconds)
    storm.life.ask(StopAsked())
    storm.calm()
    assert storm.life.run.state in (R.TERMINATED, R.FAILED, R.DONE)
