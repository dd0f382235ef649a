"""A machine that will leave: without `warn_signal` its jobs go at once, with it they use the time they are given."""

import signal
from uuid import UUID

import pytest

from stoker.core.errors import UserError
from stoker.core.ids import InstanceId
from stoker.core.instance import INSTANCE
from stoker.core.instance_facts import CordonAsked, DrainAsked, PreemptionNoticed, TellJobs, Tidings
from stoker.core.instance_facts import S as InstanceState
from stoker.core.job import JOB, deadline
from stoker.core.job_facts import (
    AskStop,
    Cleanup,
    Draining,
    Exited,
    InstanceGone,
    Interrupted,
    Job,
    RunnerAccepted,
    S,
    Warn,
)
from stoker.core.machine import TimeUp
from stoker.core.policy import Policy
from stoker.core.reason import JobReason
from stoker.core.warning import SIGNALS, UNHEARD, Deadline, WarnSignal
from tests.core import test_instance as instances
from tests.core.living import walk
from tests.core.test_job import at

HERE = InstanceId(UUID(int=7))
WARNED = Policy(warn_signal=WarnSignal("USR1", 60.0), stop_duration_s=10.0)
NOTICE = Interrupted(at(S.RUNNING).instance_id or HERE, "its machine is leaving", 220.0, 120.0)
"""Given at 100: the machine leaves at 220."""


def running(**fields: object) -> Job:
    return at(S.RUNNING, **({"policy": WARNED} | fields))


def test_without_a_warning_a_preempted_job_is_stopped_at_once_so_that_it_runs_elsewhere_sooner() -> None:
    job, effects, _ = walk(JOB, at(S.RUNNING), NOTICE, now=100.0)
    assert (job.state, job.reason, effects) == (
        S.TERMINATING,
        JobReason.INTERRUPTED_BY_NO_CAPACITY,
        [AskStop(grace_s=10.0)],
    )


def test_with_a_warning_it_runs_on_until_it_must_stop_to_be_gone_in_time() -> None:
    job, effects, _ = walk(JOB, running(), NOTICE, now=100.0)
    assert (job.state, job.leave_at, deadline(job)) == (S.RUNNING, 210.0, 210.0)
    assert effects == [Warn(210.0, Deadline.PREEMPTION)]
    assert JOB.step(job, TimeUp(), 209.0).row is None
    gone, effects, _ = walk(JOB, job, TimeUp(), now=210.0)
    assert (gone.reason, gone.cleanup, effects) == (
        JobReason.INTERRUPTED_BY_NO_CAPACITY, Cleanup.STOP, [AskStop(grace_s=10.0)],
    )  # fmt: skip


def test_a_notice_that_is_told_again_and_late_changes_nothing() -> None:
    job, _, _ = walk(JOB, running(), NOTICE, now=100.0)
    again, effects, _ = walk(JOB, job, NOTICE, now=209.0)
    assert (again.state, again.leave_at, effects) == (S.RUNNING, 210.0, [])


def test_a_notice_that_comes_too_late_to_be_used_stops_the_job() -> None:
    job, _, _ = walk(JOB, running(), NOTICE, now=211.0)
    assert job.state is S.TERMINATING


def test_of_a_notice_shorter_than_its_grace_one_half_is_the_programs_own() -> None:
    short = Interrupted(NOTICE.instance_id, "its machine is leaving", 108.0, 8.0)
    job, _, _ = walk(JOB, running(), short, now=100.0)
    assert job.leave_at == 104.0


@pytest.mark.parametrize("state", [S.PROVISIONING, S.PULLING])
def test_a_job_that_has_not_begun_has_nothing_to_save(state: S) -> None:
    job, _, _ = walk(JOB, at(state, policy=WARNED), NOTICE, now=100.0)
    assert (job.state, job.reason) == (S.TERMINATING, JobReason.INTERRUPTED_BY_NO_CAPACITY)


def test_a_program_that_leaves_after_the_warning_was_interrupted_and_keeps_its_exit_code() -> None:
    """Also one that has no handler, and dies of the signal."""
    job, _, _ = walk(JOB, running(running_at=0.0, leave_at=210.0), Exited(138, signal=10), now=151.0)
    assert (job.reason, job.exit_code, job.exit_signal) == (JobReason.INTERRUPTED_BY_NO_CAPACITY, 138, 10)


@pytest.mark.parametrize(
    ("event", "now", "reason"),
    [
        (Exited(0), 151.0, JobReason.DONE_BY_RUNNER),
        (Exited(1), 149.0, JobReason.CONTAINER_EXITED_WITH_ERROR),
        (Exited(1, ago_s=5.0), 151.0, JobReason.CONTAINER_EXITED_WITH_ERROR),
        (Exited(137, signal=9, oom=True), 151.0, JobReason.OUT_OF_MEMORY),
        (Exited(1, setup=True), 151.0, JobReason.SETUP_FAILED),
    ],
)
def test_what_has_nothing_to_do_with_the_warning_ends_as_ever(event: Exited, now: float, reason: JobReason) -> None:
    """Done in time, failed before it was warned, out of memory, or still in its setup."""
    job, _, _ = walk(JOB, running(running_at=0.0, leave_at=210.0), event, now=now)
    assert job.reason is reason


def test_a_machine_that_goes_before_its_time_ends_the_job_at_once() -> None:
    job, _, _ = walk(JOB, running(leave_at=210.0), InstanceGone(NOTICE.instance_id), now=150.0)
    assert (job.reason, job.gone) == (JobReason.INTERRUPTED_BY_NO_CAPACITY, True)


def test_a_job_on_a_machine_that_is_drained_is_warned_and_runs_on() -> None:
    job, effects, _ = walk(JOB, running(), Draining(NOTICE.instance_id, 500.0))
    assert (job.state, job.leave_at, effects) == (S.RUNNING, 500.0, [Warn(500.0, Deadline.DRAIN)])
    again, effects, _ = walk(JOB, job, Draining(NOTICE.instance_id, 500.0))
    assert (again, effects) == (job, [])
    over, _, _ = walk(JOB, job, Interrupted(NOTICE.instance_id), now=500.0)
    assert over.reason is JobReason.INTERRUPTED_BY_NO_CAPACITY


def test_a_drain_that_is_called_off_is_no_deadline_any_more() -> None:
    job, effects, _ = walk(JOB, running(leave_at=500.0), Draining(NOTICE.instance_id, None))
    assert (job.leave_at, deadline(job), effects) == (None, None, [Warn(None, Deadline.DRAIN)])


def test_a_job_that_begins_on_a_machine_that_is_drained_is_told_then() -> None:
    job, effects, _ = walk(JOB, at(S.PULLING, policy=WARNED), Draining(NOTICE.instance_id, 500.0))
    assert effects == []
    _, effects, _ = walk(JOB, job, RunnerAccepted())
    assert effects == [Warn(500.0, Deadline.DRAIN)]


def test_a_drain_is_told_to_a_job_without_a_warning_too() -> None:
    """It hears no signal, but its program may read in STOKER_DEADLINE_FILE when it has to be done, as documented."""
    job, effects, _ = walk(JOB, at(S.RUNNING), Draining(NOTICE.instance_id, 500.0))
    assert (job.state, job.leave_at, effects) == (S.RUNNING, 500.0, [Warn(500.0, Deadline.DRAIN)])
    failed, _, _ = walk(JOB, job, Exited(1), now=499.0)
    assert failed.reason is JobReason.CONTAINER_EXITED_WITH_ERROR, "no warning ended it"
    over, _, _ = walk(JOB, job, TimeUp(), now=500.0)
    assert over.reason is JobReason.INTERRUPTED_BY_NO_CAPACITY


def test_the_story_says_that_a_program_is_warned_where_it_is() -> None:
    assert JOB.step(running(), Draining(NOTICE.instance_id, 500.0), 0.0).note == "its machine is drained; it is warned"
    assert JOB.step(at(S.RUNNING), Draining(NOTICE.instance_id, 500.0), 0.0).note == "its machine is drained"


def test_a_machine_tells_its_jobs_of_a_notice_and_of_a_drain() -> None:
    busy = instances.at(InstanceState.BUSY, **instances.HELD)
    _, effects, _ = walk(INSTANCE, busy, PreemptionNoticed(120.0))
    assert effects == [TellJobs(Tidings.NOTICED)]
    draining, effects, _ = walk(INSTANCE, busy, DrainAsked(500.0))
    assert effects == [TellJobs(Tidings.DRAINING)]
    _, effects, _ = walk(INSTANCE, draining, CordonAsked(False))
    assert effects == [TellJobs(Tidings.DRAINING)]


@pytest.mark.parametrize("name", ["KILL", "STOP", "SIGUSR1", "BELL"])
def test_a_signal_that_no_program_hears_is_no_warning(name: str) -> None:
    with pytest.raises(UserError, match="cannot be warned"):
        WarnSignal(name, 60.0)


def test_every_signal_that_the_kernel_has_is_known() -> None:
    kernels = {one.name.removeprefix("SIG") for one in signal.Signals} - {"RTMIN", "RTMAX", "CLD", "POLL"}
    assert kernels <= SIGNALS | UNHEARD
    assert {f"SIG{name}" for name in SIGNALS} <= set(signal.Signals.__members__)


def test_it_is_stored_with_the_run() -> None:
    assert Policy.from_json(WARNED.to_json()) == WARNED
