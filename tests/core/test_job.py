"""The table of the job: each sentence of the contract a test, each row a case, each pair decided."""

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from stoker.core.gang import OnNoCapacity
from stoker.core.job import JOB, deadline
from stoker.core.job_facts import (
    ACTIVE,
    FINISHED,
    PLACED,
    AgentFailed,
    CleanedUp,
    Cleanup,
    Draining,
    EndAsked,
    Exited,
    Freed,
    Gathered,
    GraceCut,
    Heard,
    InstanceGone,
    Interrupted,
    Job,
    LimitExceeded,
    NoCapacity,
    Parted,
    Placed,
    Release,
    Released,
    Reserved,
    RunnerAccepted,
    S,
    Silent,
    StartTask,
    SubmitJob,
    Taken,
    TaskAccepted,
    VolumeFailed,
)
from stoker.core.limits import UNREGISTER_S
from stoker.core.machine import Event, Refused, Send, TimeUp
from stoker.core.policy import Disconnect, Policy
from stoker.core.reason import CONSEQUENCES, JobEnd, JobReason
from stoker.core.retry import Fate
from stoker.core.warning import WarnSignal
from tests.core.living import a_job, machine, walk

HERE, ELSEWHERE = machine(1), machine(2)
GANG = Policy(nodes=2)
FAIL = Policy(on_no_capacity=OnNoCapacity.FAIL)
LIMITED = Policy(start_timeout_s=60, max_duration_s=3600, disconnect=Disconnect(60, 90))


def at(state: S, **fields: Any) -> Job:
    """A job as it stands in that state."""
    usual: dict[str, Any] = {"state": state}
    if state is not S.SUBMITTED:
        usual |= {"instance_id": HERE, "blocks": (0,)}
    if state is S.RUNNING:
        usual |= {"running_at": 0.0}
    if state not in ACTIVE:
        usual |= {"cleanup": Cleanup.REMOVE, "reason": JobReason.TERMINATED_BY_USER, "fate": Fate.STOPPED}
    return a_job(**(usual | fields))


class Case(NamedTuple):
    job: Job
    event: Event
    to: S
    now: float = 0.0


def ending(step: Cleanup, **fields: Any) -> Job:
    return at(S.TERMINATING, cleanup=step, remove_at=10.0, **fields)


def released(reason: JobReason) -> Job:
    return ending(Cleanup.RELEASE, reason=reason)


WARNED = Policy(warn_signal=WarnSignal("USR1", 60.0))
OVERRUN = LimitExceeded(JobReason.MAX_DURATION_EXCEEDED, ended=Exited(143))
SILENT: dict[str, Any] = {"policy": LIMITED, "unreachable_since": 0.0}
CASES = [
    Case(at(S.SUBMITTED), Reserved(HERE, (0,)), S.SUBMITTED),
    Case(at(S.SUBMITTED), Placed(HERE, (0,)), S.PROVISIONING),
    Case(at(S.SUBMITTED, instance_id=HERE), Placed(HERE, (0,)), S.PROVISIONING),
    Case(at(S.SUBMITTED), NoCapacity("full"), S.TERMINATING),
    Case(at(S.SUBMITTED), VolumeFailed("volume data has failed"), S.TERMINATING),
    Case(at(S.SUBMITTED, instance_id=HERE, policy=FAIL), Interrupted(HERE), S.TERMINATING),
    Case(at(S.SUBMITTED, instance_id=HERE), Interrupted(HERE), S.SUBMITTED),
    Case(at(S.SUBMITTED, instance_id=HERE, policy=FAIL), InstanceGone(HERE), S.TERMINATING),
    Case(at(S.SUBMITTED, instance_id=HERE), InstanceGone(HERE), S.SUBMITTED),
    Case(at(S.SUBMITTED, instance_id=HERE, policy=GANG), Parted(), S.SUBMITTED),
    Case(at(S.SUBMITTED, policy=LIMITED), TimeUp(), S.TERMINATING, 60.0),
    Case(at(S.SUBMITTED, policy=LIMITED, ready_at=15.0), TimeUp(), S.SUBMITTED, 15.0),
    Case(at(S.PROVISIONING), TaskAccepted(), S.PULLING),
    Case(at(S.PROVISIONING, policy=GANG), TaskAccepted(), S.PULLING),
    Case(at(S.PROVISIONING, policy=GANG, shim=False), Gathered(), S.PROVISIONING),
    Case(at(S.PULLING, policy=GANG), Gathered(), S.PULLING),
    Case(at(S.PROVISIONING, shim=False), RunnerAccepted(), S.RUNNING),
    Case(at(S.PROVISIONING), TimeUp(), S.TERMINATING, 600.0),
    Case(at(S.PULLING), RunnerAccepted(), S.RUNNING),
    Case(at(S.PULLING), TimeUp(), S.TERMINATING, 600.0),
    *(Case(at(state), LimitExceeded(JobReason.INACTIVITY_DURATION_EXCEEDED), S.TERMINATING) for state in PLACED),
    *(Case(at(state, policy=WARNED), Draining(HERE, 500.0), state) for state in PLACED),
    Case(at(S.RUNNING, policy=WARNED), Interrupted(HERE, leaves_at=120.0, notice_s=120.0), S.RUNNING),
    Case(at(S.RUNNING, policy=WARNED, leave_at=110.0), TimeUp(), S.TERMINATING, 110.0),
    Case(at(S.RUNNING, policy=WARNED, leave_at=110.0), Exited(1), S.TERMINATING, 100.0),
    Case(at(S.RUNNING, policy=LIMITED), TimeUp(), S.TERMINATING, 3600.0),
    Case(at(S.RUNNING, **SILENT), TimeUp(), S.TERMINATING, 90.0),
    *(Case(at(state), Exited(0), S.TERMINATING) for state in PLACED),
    *(Case(at(state), Exited(1), S.TERMINATING) for state in PLACED),
    *(Case(at(state), AgentFailed(JobReason.EXECUTOR_ERROR), S.TERMINATING) for state in PLACED),
    *(Case(at(state), Interrupted(HERE), S.TERMINATING) for state in PLACED),
    *(Case(at(state), InstanceGone(HERE), S.TERMINATING) for state in PLACED),
    *(Case(at(state), EndAsked(JobReason.SCALED_DOWN, fate=Fate.GONE), S.TERMINATING) for state in ACTIVE),
    *(Case(at(state), Silent(), state) for state in (*PLACED, S.TERMINATING)),
    *(Case(at(state, unreachable_since=0.0), Heard(), state) for state in (*PLACED, S.TERMINATING)),
    *(Case(ending(step), CleanedUp(step), S.TERMINATING) for step in Cleanup),
    Case(ending(Cleanup.STOP), Exited(143), S.TERMINATING),
    *(Case(ending(step), OVERRUN, S.TERMINATING) for step in Cleanup),
    Case(ending(Cleanup.STOP), AgentFailed(JobReason.EXECUTOR_ERROR), S.TERMINATING),
    *(Case(ending(step), Exited(143), S.TERMINATING) for step in Cleanup if step is not Cleanup.STOP),
    Case(ending(Cleanup.UNREGISTER), TimeUp(), S.TERMINATING, UNREGISTER_S),
    Case(ending(Cleanup.STOP), TimeUp(), S.TERMINATING, 10.0),
    Case(ending(Cleanup.REMOVE, **SILENT), TimeUp(), S.TERMINATING, 90.0),
    Case(ending(Cleanup.REMOVE), InstanceGone(HERE), S.TERMINATING),
    Case(ending(Cleanup.UNREGISTER), InstanceGone(HERE), S.TERMINATING),
    Case(ending(Cleanup.STOP), GraceCut(), S.TERMINATING),
    Case(released(JobReason.DONE_BY_RUNNER), Released(), S.DONE),
    Case(released(JobReason.EXECUTOR_ERROR), Released(), S.FAILED),
    Case(released(JobReason.TERMINATED_BY_USER), Released(), S.TERMINATED),
    Case(released(JobReason.ABORTED_BY_USER), Released(), S.ABORTED),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.job.state}-{type(case.event).__name__}-{case.to}")
def test_the_transition(case: Case) -> None:
    """The rows of the contract's table, one situation each."""
    step = JOB.step(case.job, case.event, case.now)
    assert step.row is not None
    assert step.record.state is case.to
    assert step.record.version == case.job.version + 1
    assert step.record.entered_at == (case.now if case.to is not case.job.state else case.job.entered_at)


def test_every_row_has_its_case() -> None:
    """A row that no situation reaches is a row nobody has thought through."""
    reached = {JOB.step(case.job, case.event, case.now).row for case in CASES}
    assert [row.name for row in JOB.rows if row not in reached] == []
    assert JOB.shadowed() == []


def test_each_pair_is_a_row_or_stale_or_on_this_list() -> None:
    """Somebody adds an event and forgets a state: this list says what nobody can say of a job then."""
    never = {
        "SUBMITTED": "TaskAccepted RunnerAccepted Exited AgentFailed LimitExceeded GraceCut CleanedUp Released",
        "PROVISIONING": "RunnerAccepted GraceCut CleanedUp Released",
        "PULLING": "GraceCut CleanedUp Released",
        "RUNNING": "GraceCut CleanedUp Released",
    }
    assert JOB.refused() == {(state, event) for state, events in never.items() for event in events.split()}


def test_nothing_leaves_a_finished_state() -> None:
    """News of a job that ended is late news, whatever it says."""
    assert JOB.finished == FINISHED
    for state in FINISHED:
        for case in CASES:
            assert JOB.step(at(state), case.event, 1e9).row is None


def test_only_the_terminating_phase_assigns_a_finished_status() -> None:
    """And only when nothing is held any more: by Released, from TERMINATING."""
    last = {(row.source, row.event) for row in JOB.rows if row.target in FINISHED}
    assert last == {(S.TERMINATING, Released)}


def test_news_of_an_earlier_submission_falls_on_the_floor() -> None:
    """The first try's container reports its exit when the second one runs already."""
    job = at(S.RUNNING)
    assert JOB.step(job, Exited(1, attempt=0), 5.0) == (job, (), (), None, "")


def test_an_existing_instance_is_assigned() -> None:
    """It takes its blocks in the same commit and asks the shim to start its task."""
    job, effects, sends = walk(JOB, at(S.SUBMITTED), Placed(HERE, (2, 3), owned=False))
    assert (job.state, job.instance_id, job.blocks, job.owned) == (S.PROVISIONING, HERE, (2, 3), False)
    assert effects == [StartTask()]
    assert sends == [Send("instance", HERE, Taken(job.id, (2, 3)))]


def test_a_machine_that_is_not_launched_yet_is_reserved() -> None:
    """The provider is asked after the commit; the job stays SUBMITTED until the launch is accepted, and takes no block
    twice."""
    job, effects, sends = walk(JOB, at(S.SUBMITTED), Reserved(HERE, (0,)))
    assert (job.state, job.instance_id, effects) == (S.SUBMITTED, HERE, [])
    assert sends == [Send("instance", HERE, Taken(job.id, (0,), reserved=True))]

    job, effects, sends = walk(JOB, job, Placed(ELSEWHERE, (1,)), Placed(HERE, (0,)))
    assert (job.state, job.instance_id, effects, sends) == (S.PROVISIONING, HERE, [StartTask()], [])


@pytest.mark.parametrize("news", [Interrupted(HERE, "refused"), InstanceGone(HERE, "refused")])
def test_a_queued_job_waits_again_when_its_launch_is_refused(news: Event) -> None:
    """The cloud is full; the job did nothing wrong and goes back into the queue without a trace on the machine."""
    job, _, sends = walk(JOB, at(S.SUBMITTED, instance_id=HERE, blocks=(0,)), news)
    assert (job.state, job.instance_id, job.blocks, job.fate) == (S.SUBMITTED, None, (), Fate.OPEN)
    assert sends == [Send("instance", HERE, Freed(job.id))]
    assert JOB.step(job, news, 1.0).row is None


def test_without_a_queue_a_refused_launch_ends_it_and_gives_the_reservation_back() -> None:
    """`on_no_capacity: fail`: the blocks it had reserved go back before it is finished."""
    job, effects, _ = walk(JOB, at(S.SUBMITTED, instance_id=HERE, policy=FAIL), Interrupted(HERE, "no A100 in eu-1"))
    assert (job.reason, job.message) == (JobReason.FAILED_TO_START_DUE_TO_NO_CAPACITY, "no A100 in eu-1")
    assert effects == [Release()]
    job, _, sends = walk(JOB, job, CleanedUp(Cleanup.RELEASE))
    assert sends == [Send("job", job.id, Released())]
    job, _, sends = walk(JOB, job, Released())
    assert (job.state, sends) == (S.FAILED, [Send("instance", HERE, Freed(job.id))])


def test_no_capacity_ends_a_job_that_has_no_machine_only() -> None:
    """The placer's word is overtaken by a reservation: it means a job that is not waiting any more."""
    job = at(S.SUBMITTED, instance_id=HERE)
    assert JOB.step(job, NoCapacity("full"), 1.0).row is None


def test_a_container_only_backend_has_no_pulling() -> None:
    """A pod has no shim: the runner is asked at once, and its answer makes the job RUNNING."""
    job, effects, _ = walk(JOB, at(S.SUBMITTED), Placed(HERE, (0,), shim=False), now=3.0)
    assert effects == [SubmitJob()]
    job, effects, _ = walk(JOB, job, RunnerAccepted(), now=4.0)
    assert (job.state, job.running_at, effects) == (S.RUNNING, 4.0, [])


def test_a_runner_cannot_answer_before_the_shim_took_the_task() -> None:
    with pytest.raises(Refused, match="job is PROVISIONING: RunnerAccepted is not possible now"):
        JOB.step(at(S.PROVISIONING), RunnerAccepted(), 1.0)


def test_an_agent_that_took_the_job_is_not_silent_any_more() -> None:
    """Its line was cut while the image was pulled; the runner's answer itself proves that it is back."""
    job, _, _ = walk(JOB, at(S.PULLING, owned=False), Silent(), now=10.0)
    job, _, _ = walk(JOB, job, RunnerAccepted(), now=500.0)
    assert job.unreachable_since is None
    assert deadline(job) is None


@pytest.mark.parametrize(
    ("exited", "reason"),
    [
        (Exited(0), JobReason.DONE_BY_RUNNER),
        (Exited(3), JobReason.CONTAINER_EXITED_WITH_ERROR),
        (Exited(0, signal=11), JobReason.CONTAINER_EXITED_WITH_ERROR),
        (Exited(137, signal=9, oom=True), JobReason.OUT_OF_MEMORY),
        (Exited(2, setup=True), JobReason.SETUP_FAILED),
    ],
)
def test_exit_code_and_signal_are_kept_and_out_of_memory_is_told_apart(exited: Exited, reason: JobReason) -> None:
    """A person reads why it ended in the job itself; the machine may be gone by then."""
    job, _, _ = walk(JOB, at(S.RUNNING), exited)
    assert (job.reason, job.exit_code, job.exit_signal) == (reason, exited.exit_code, exited.signal)


@pytest.mark.parametrize("reason", JobReason)
def test_which_status_follows_from_the_reason(reason: JobReason) -> None:
    """The third table of the contract: one finished status a reason."""
    job, _, _ = walk(JOB, released(reason), Released())
    assert JobEnd(job.state.value) is CONSEQUENCES[reason].ends


@pytest.mark.parametrize("state", PLACED)
def test_a_provider_that_says_it_is_gone_interrupts_the_job(state: S) -> None:
    """Preempted between two looks; another machine's end is none of its business."""
    job, _, _ = walk(JOB, at(state), InstanceGone(ELSEWHERE), InstanceGone(HERE, "terminated by AWS"))
    assert (job.reason, job.gone) == (JobReason.INTERRUPTED_BY_NO_CAPACITY, True)
    assert job.message == "terminated by AWS"


def test_before_running_the_two_waiting_limits_apply() -> None:
    """The machine does not come up, or its image is too large for the line; silence alone changes nothing."""
    policy = Policy(waiting_instance_s=30, waiting_runner_s=40, disconnect=Disconnect(1, 2))
    waiting = at(S.PROVISIONING, policy=policy, entered_at=100.0)
    silent, _, _ = walk(JOB, waiting, Silent(), now=101.0)
    assert deadline(silent) == 130.0
    assert JOB.step(silent, TimeUp(), 129.0).row is None
    assert walk(JOB, silent, TimeUp(), now=130.0)[0].reason is JobReason.WAITING_INSTANCE_LIMIT_EXCEEDED

    pulling = replace(silent, state=S.PULLING, entered_at=200.0)
    assert deadline(pulling) == 240.0
    assert walk(JOB, pulling, TimeUp(), now=240.0)[0].reason is JobReason.WAITING_RUNNER_LIMIT_EXCEEDED


def test_a_submission_that_waits_before_it_is_tried_again_gets_ready_when_its_time_comes() -> None:
    job = at(S.SUBMITTED, ready_at=15.0)
    assert deadline(job) == 15.0
    assert JOB.step(job, TimeUp(), 14.0).row is None
    job, effects, _ = walk(JOB, job, TimeUp(), now=15.0)
    assert (job.ready_at, deadline(job), effects) == (None, None, [])


def test_max_duration_counts_from_when_it_ran() -> None:
    job = at(S.RUNNING, policy=Policy(max_duration_s=60), running_at=100.0, entered_at=100.0)
    assert deadline(job) == 160.0
    assert JOB.step(job, TimeUp(), 159.0).row is None
    job, _, _ = walk(JOB, job, TimeUp(), now=160.0)
    assert (job.reason, job.fate) == (JobReason.MAX_DURATION_EXCEEDED, Fate.LIMIT)


def test_unreachable_is_shown_and_changes_nothing_else() -> None:
    """Somebody pulled the cable of a host of their own: the job runs on, for as long as it takes."""
    job, effects, sends = walk(JOB, at(S.RUNNING), Silent(), now=50.0)
    assert job == replace(at(S.RUNNING), unreachable_since=50.0, version=1)
    assert (effects, sends, deadline(job)) == ([], [], None)
    assert JOB.step(job, Silent(), 60.0).row is None, "the first moment counts"
    assert JOB.step(job, TimeUp(), 1e9).row is None
    assert walk(JOB, job, Heard(), now=70.0)[0].unreachable_since is None


def test_a_provider_machine_may_be_silent_for_twenty_minutes() -> None:
    job, _, _ = walk(JOB, at(S.RUNNING, owned=False), Silent(), now=50.0)
    assert deadline(job) == 50.0 + 20 * 60
    assert JOB.step(job, TimeUp(), 1249.0).row is None
    assert walk(JOB, job, TimeUp(), now=1250.0)[0].reason is JobReason.INSTANCE_UNREACHABLE


@pytest.mark.parametrize("owned", [True, False])
def test_with_a_disconnect_policy_it_is_given_up_after_fail_after(owned: bool) -> None:
    """They opted in: the agent stops it by its own clock first, so that the server may give it up."""
    policy = Policy(disconnect=Disconnect(stop_after_s=60, fail_after_s=90))
    job, _, _ = walk(JOB, at(S.RUNNING, owned=owned, policy=policy), Silent(), now=50.0)
    assert deadline(job) == 140.0
    assert JOB.step(job, TimeUp(), 139.0).row is None
    job, _, _ = walk(JOB, job, TimeUp(), now=140.0)
    assert job.reason is JobReason.INSTANCE_UNREACHABLE
