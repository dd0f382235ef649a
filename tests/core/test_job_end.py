"""The terminating phase: its order, its grace, and that nothing is given back before it is free."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from stoker.core.ids import VolumeId
from stoker.core.job import JOB, deadline
from stoker.core.job_facts import (
    AgentFailed,
    AskStop,
    CleanedUp,
    Cleanup,
    DetachVolumes,
    EndAsked,
    Exited,
    Freed,
    GraceCut,
    Heard,
    InstanceGone,
    Interrupted,
    Job,
    Release,
    Released,
    RemoveTask,
    S,
    Silent,
    Unregister,
)
from stoker.core.limits import UNREGISTER_S
from stoker.core.machine import Effect, Send, TimeUp
from stoker.core.policy import Disconnect, Policy
from stoker.core.reason import JobReason
from stoker.core.retry import Budget, Fate
from tests.core.living import a_job, machine, walk

HERE = machine(1)
ONE_VOLUME = (VolumeId(UUID(int=77)),)
STOP = EndAsked(JobReason.TERMINATED_BY_USER)
ABORT = EndAsked(JobReason.ABORTED_BY_USER)
ANSWERS: dict[type[Effect], Any] = {
    Unregister: CleanedUp(Cleanup.UNREGISTER),
    AskStop: Exited(143, signal=15),
    RemoveTask: CleanedUp(Cleanup.REMOVE),
    DetachVolumes: CleanedUp(Cleanup.DETACH),
    Release: CleanedUp(Cleanup.RELEASE),
}


def running(policy: Policy | None = None, **fields: Any) -> Job:
    usual: dict[str, Any] = {"state": S.RUNNING, "running_at": 0.0, "instance_id": HERE, "blocks": (0,)}
    return a_job(policy=policy or Policy(), **(usual | fields))


def cleanup_of(job: Job, *events: Any) -> tuple[list[str], Job]:
    """What is wished for, one after the other, when every wish is fulfilled; and the job as it ends."""
    job, wishes, sends = walk(JOB, job, *events)
    names: list[str] = []
    while not sends:
        (wish,) = wishes
        names.append(type(wish).__name__)
        job, wishes, sends = walk(JOB, job, ANSWERS[type(wish)])
    assert sends == [Send("job", job.id, Released())]
    job, wishes, sends = walk(JOB, job, Released())
    given_back = [send for send in sends if send.kind != "volume"]
    assert (wishes, given_back) == ([], [Send("instance", HERE, Freed(job.id))] if job.instance_id else [])
    return names, job


def test_the_order_is_unregister_stop_remove_detach_release() -> None:
    """A service with a volume is stopped: traffic leaves first, blocks are given back last."""
    names, job = cleanup_of(running(Policy(service=True, volumes=ONE_VOLUME)), STOP)
    assert names == ["Unregister", "AskStop", "RemoveTask", "DetachVolumes"]
    assert job.state is S.TERMINATED
    assert list(Cleanup) == [Cleanup.UNREGISTER, Cleanup.STOP, Cleanup.REMOVE, Cleanup.DETACH, Cleanup.RELEASE]


def test_each_step_has_a_phase_of_its_own() -> None:
    """The outbox drops a wish when the phase has moved on: a late RemoveTask never removes the next task."""
    job, _, _ = walk(JOB, running(Policy(service=True, volumes=ONE_VOLUME)), STOP)
    phases = [job.phase]
    for step in list(Cleanup)[:4]:
        job, _, _ = walk(JOB, job, CleanedUp(step))
        phases.append(job.phase)
    assert phases == [f"TERMINATING:{step.value}" for step in Cleanup]


@pytest.mark.parametrize(
    ("job", "event", "names"),
    [
        (running(), Exited(0), ["RemoveTask"]),
        (running(), AgentFailed(JobReason.LOG_QUOTA_EXCEEDED), ["AskStop", "RemoveTask"]),
        (running(Policy(service=True)), Exited(1), ["Unregister", "RemoveTask"]),
        (running(Policy(volumes=ONE_VOLUME)), InstanceGone(HERE), ["DetachVolumes"]),
        (running(), InstanceGone(HERE), ["Release"]),
        (running(Policy(service=True)), InstanceGone(HERE), ["Unregister"]),
        (running(), Interrupted(HERE), ["AskStop", "RemoveTask"]),
        (replace(running(Policy(service=True)), state=S.PULLING, running_at=None), STOP, ["RemoveTask"]),
        (
            replace(running(Policy(volumes=ONE_VOLUME)), state=S.PROVISIONING, running_at=None),
            STOP,
            ["RemoveTask", "Detach"],
        ),
        (a_job(policy=Policy(service=True, volumes=ONE_VOLUME)), STOP, []),
        (a_job(policy=Policy(volumes=ONE_VOLUME), instance_id=HERE), STOP, ["Release"]),
    ],
)
def test_a_step_with_nothing_to_do_is_skipped(job: Job, event: Any, names: list[str]) -> None:
    """What exited is not asked to stop, what never ran is not unregistered, what is gone is not removed; what may have
    a task though nobody heard of it is removed all the same."""
    found, _ = cleanup_of(job, event)
    assert [name.replace("Volumes", "") for name in found] == [name.replace("Volumes", "") for name in names]


def test_it_waits_until_the_program_has_ended_or_remove_at_has_come() -> None:
    """`stop_duration: 30s` is honoured as configured, and not a second longer."""
    job, _, _ = walk(JOB, running(Policy(stop_duration_s=30)), STOP, now=100.0)
    assert (job.remove_at, deadline(job)) == (130.0, 130.0)
    assert JOB.step(job, TimeUp(), 129.9).row is None
    late, effects, _ = walk(JOB, job, TimeUp(), now=130.0)
    assert (late.cleanup, effects, deadline(late)) == (Cleanup.REMOVE, [RemoveTask()], None)
    early, effects, _ = walk(JOB, job, Exited(0), now=101.0)
    assert (early.cleanup, early.exit_code, effects) == (Cleanup.REMOVE, 0, [RemoveTask(known=True)])


def test_the_grace_is_ten_seconds_by_default() -> None:
    job, _, _ = walk(JOB, running(), STOP, now=100.0)
    assert job.remove_at == 110.0


def test_a_runner_that_says_it_stopped_without_an_exit_code_is_believed() -> None:
    job, effects, _ = walk(JOB, running(), STOP, CleanedUp(Cleanup.STOP))
    assert (job.exit_code, effects[1:]) == (None, [RemoveTask()])


def test_a_runner_that_died_is_not_waited_for() -> None:
    """An hour of grace is for a program that somebody watches: after a reboot nobody would tell of its end."""
    job, _, _ = walk(JOB, running(Policy(stop_duration_s=3600.0)), STOP)
    job, wishes, _ = walk(JOB, job, AgentFailed(JobReason.EXECUTOR_ERROR, "the runner died"))
    assert (job.state, job.reason, wishes) == (S.TERMINATING, JobReason.TERMINATED_BY_USER, [RemoveTask()])


def test_how_it_ended_is_kept_even_when_it_comes_after_the_grace() -> None:
    """It ignored SIGTERM and was killed with its task: 137 is what people want to read."""
    job, _, _ = walk(JOB, running(), STOP)
    job, effects, _ = walk(JOB, job, TimeUp(), Exited(137, signal=9), now=10.0)
    assert (job.exit_code, job.exit_signal, job.cleanup) == (137, 9, Cleanup.REMOVE)
    assert effects == [RemoveTask()]
    assert JOB.step(job, Exited(0), 11.0).row is None, "the first word counts"


def test_an_exit_while_it_is_unregistered_spares_the_stop() -> None:
    """The gateway is slow; meanwhile the program ends by itself."""
    job, _, _ = walk(JOB, running(Policy(service=True)), STOP, Exited(0))
    assert (job.cleanup, job.exit_code) == (Cleanup.UNREGISTER, 0)
    _, effects, _ = walk(JOB, job, CleanedUp(Cleanup.UNREGISTER))
    assert effects == [RemoveTask(known=True)]


def test_a_machine_that_leaves_while_it_is_unregistered_spares_the_removal() -> None:
    job, _, _ = walk(JOB, running(Policy(service=True)), STOP, InstanceGone(HERE))
    assert (job.cleanup, job.gone) == (Cleanup.UNREGISTER, True)
    _, _, sends = walk(JOB, job, CleanedUp(Cleanup.UNREGISTER))
    assert sends == [Send("job", job.id, Released())]


def test_an_abort_has_no_grace() -> None:
    """Faster than a stop: the removal comes at once, whether or not the program listens."""
    job, effects, _ = walk(JOB, running(Policy(stop_duration_s=3600)), ABORT, now=100.0)
    assert (effects, deadline(job)) == ([AskStop(3600)], 100.0)
    job, effects, _ = walk(JOB, job, TimeUp(), now=100.0)
    assert effects == [RemoveTask()]


def test_an_abort_during_a_stop_cuts_the_grace() -> None:
    job, _, _ = walk(JOB, running(Policy(stop_duration_s=3600)), STOP, now=100.0)
    job, effects, _ = walk(JOB, job, GraceCut(), now=101.0)
    assert (job.reason, job.cleanup, effects) == (JobReason.ABORTED_BY_USER, Cleanup.REMOVE, [RemoveTask()])
    assert JOB.step(job, GraceCut(), 102.0).row is None


def test_what_may_have_begun_unheard_has_its_grace_too() -> None:
    """The link was cut while it started: its program may have run for long when its user stops it."""
    unheard = replace(running(Policy(stop_duration_s=3600)), state=S.PULLING, running_at=None)
    job, effects, _ = walk(JOB, unheard, STOP, now=100.0)
    assert effects == [RemoveTask(grace_s=3600)]
    _, effects, _ = walk(JOB, job, GraceCut(), now=101.0)
    assert effects == [RemoveTask()], "an abort cuts it, whoever began"
    assert walk(JOB, unheard, ABORT)[1] == [RemoveTask()]
    assert walk(JOB, unheard, Exited(0))[1] == [RemoveTask(known=True)]


def test_an_abort_does_not_rewrite_why_a_job_failed() -> None:
    """It was evicted and is stopping; the abort makes it quicker, not another story."""
    job, _, _ = walk(JOB, running(), Interrupted(HERE), GraceCut())
    assert (job.reason, job.cleanup) == (JobReason.INTERRUPTED_BY_NO_CAPACITY, Cleanup.REMOVE)


def test_an_abort_while_it_is_unregistered_leaves_no_grace_afterwards() -> None:
    job, _, _ = walk(JOB, running(Policy(service=True, stop_duration_s=3600)), STOP, now=100.0)
    job, effects, _ = walk(JOB, job, GraceCut(), now=101.0)
    assert (job.cleanup, effects) == (Cleanup.UNREGISTER, [])
    job, _, _ = walk(JOB, job, CleanedUp(Cleanup.UNREGISTER), now=102.0)
    assert (job.cleanup, deadline(job)) == (Cleanup.STOP, 101.0)
    late, _, _ = walk(JOB, running(Policy(service=True, stop_duration_s=30)), STOP, now=100.0)
    late, _, _ = walk(JOB, late, GraceCut(), now=150.0)
    late, _, _ = walk(JOB, late, CleanedUp(Cleanup.UNREGISTER), now=155.0)
    assert (late.cleanup, deadline(late)) == (Cleanup.STOP, 150.0)


def test_a_gateway_that_does_not_answer_keeps_no_job_running() -> None:
    """It is gone for good: after a while the program is asked to stop all the same, and has its whole grace."""
    job, _, _ = walk(JOB, running(Policy(service=True, stop_duration_s=30)), STOP, now=100.0)
    assert deadline(job) == 100.0 + UNREGISTER_S
    assert JOB.step(job, TimeUp(), 99.0 + UNREGISTER_S).row is None
    job, effects, _ = walk(JOB, job, TimeUp(), now=160.0)
    assert (job.cleanup, effects, deadline(job)) == (Cleanup.STOP, [AskStop(30)], 190.0)


def test_the_grace_begins_when_the_program_is_asked_to_stop() -> None:
    """The gateway took its time: that is not taken from what the user gave the program."""
    job, _, _ = walk(JOB, running(Policy(service=True, stop_duration_s=30)), STOP, now=100.0)
    job, _, _ = walk(JOB, job, CleanedUp(Cleanup.UNREGISTER), now=145.0)
    assert (job.cleanup, deadline(job)) == (Cleanup.STOP, 175.0)
    job, _, _ = walk(JOB, running(Policy(service=True, stop_duration_s=30)), ABORT, now=100.0)
    job, _, _ = walk(JOB, job, CleanedUp(Cleanup.UNREGISTER), now=145.0)
    assert (job.cleanup, deadline(job)) == (Cleanup.STOP, 100.0)


def test_a_volume_that_is_not_detached_keeps_it_terminating_and_is_forced_after_a_limit() -> None:
    """Time alone does not finish it: only the word that the volume is off, by force if need be."""
    job, _, _ = walk(JOB, running(Policy(volumes=ONE_VOLUME, detach_limit_s=300)), Exited(0), now=100.0)
    job, effects, _ = walk(JOB, job, CleanedUp(Cleanup.REMOVE), now=110.0)
    assert effects == [DetachVolumes(force_at=410.0)]
    assert deadline(job) is None
    assert JOB.step(job, TimeUp(), 1e9).row is None


def test_repeated_and_early_news_of_another_step_changes_nothing() -> None:
    """A performer ran twice: its second answer finds the job further on."""
    job, _, _ = walk(JOB, running(Policy(volumes=ONE_VOLUME)), Exited(0), CleanedUp(Cleanup.REMOVE))
    for step in Cleanup:
        if step is not Cleanup.DETACH:
            assert JOB.step(job, CleanedUp(step), 5.0).row is None


def test_what_was_decided_first_stays() -> None:
    """It failed; that the run is stopped a second later does not turn the failure into a stop."""
    job, _, _ = walk(JOB, running(), Exited(1))
    assert JOB.step(job, STOP, 1.0).row is None
    assert JOB.step(job, AgentFailed(JobReason.EXECUTOR_ERROR), 1.0).row is None


def test_a_silent_host_keeps_it_terminating_until_somebody_knows() -> None:
    """The cable is out while it is stopped: without an agent's own clock only its machine's end ends it."""
    job, _, _ = walk(JOB, running(), Silent(), STOP, now=100.0)
    job, _, _ = walk(JOB, job, TimeUp(), now=110.0)
    assert (job.cleanup, deadline(job)) == (Cleanup.REMOVE, None)
    job, _, sends = walk(JOB, job, InstanceGone(HERE), now=9000.0)
    assert (job.gone, sends) == (True, [Send("job", job.id, Released())])


def test_an_opted_in_agent_has_stopped_it_by_its_own_clock() -> None:
    """Nothing is heard any more, but its own `stop_after` has passed for certain: a new one may be placed."""
    policy = Policy(disconnect=Disconnect(60, 90), stop_duration_s=3600)
    job, _, _ = walk(JOB, running(policy), STOP, now=100.0)
    job, _, _ = walk(JOB, job, Silent(), now=110.0)
    assert deadline(job) == 200.0
    heard, _, _ = walk(JOB, job, Heard(), now=150.0)
    assert deadline(heard) == 3700.0
    job, _, sends = walk(JOB, job, TimeUp(), now=200.0)
    assert (job.gone, sends) == (True, [Send("job", job.id, Released())])


def test_given_up_at_fail_after_it_is_over_in_the_same_moment() -> None:
    """At the limit the agent has stopped it long ago: no grace on top, and no removal that nobody can do."""
    job, _, _ = walk(JOB, running(Policy(disconnect=Disconnect(60, 90))), Silent(), now=0.0)
    job, _, _ = walk(JOB, job, TimeUp(), now=90.0)
    assert (job.reason, deadline(job)) == (JobReason.INSTANCE_UNREACHABLE, 90.0)
    _, _, sends = walk(JOB, job, TimeUp(), now=90.0)
    assert sends == [Send("job", job.id, Released())]


def test_the_fate_is_decided_once_when_it_begins_to_end() -> None:
    """A node whose sibling failed goes on with the budget of the one that failed."""
    asked = EndAsked(JobReason.TERMINATED_BY_SERVER, fate=Fate.RETRY, budget=Budget(3, 7.0))
    job, _, _ = walk(JOB, running(), asked)
    assert (job.fate, job.budget) == (Fate.RETRY, Budget(3, 7.0))


def test_silence_does_not_count_as_health() -> None:
    """Ran a minute, was not heard for an hour: that is no healthy stretch that renews its retries."""
    job = running(running_at=100.0, unreachable_since=160.0)
    assert (job.ran_s(4000.0), replace(job, unreachable_since=None).ran_s(700.0), a_job().ran_s(9.0)) == (60, 600, 0)


def test_a_job_ended_when_its_host_says_and_not_when_it_was_heard() -> None:
    """The server was away for an hour; the program ended half an hour ago, after it had run for twelve minutes."""
    job = running(running_at=1000.0, budget=Budget(2, 500.0, 3))
    step = JOB.step(job, Exited(0, ago_s=1800.0), now=3520.0)
    assert step.record.exited_at == 1720.0
    assert step.record.ran_s(now=3520.0) == 720.0
    assert step.record.budget.streak == 0


@pytest.mark.parametrize(("ago_s", "exited_at"), [(-50.0, 3000.0), (1e9, 1000.0)])
def test_a_host_whose_clock_jumped_cannot_end_a_job_before_it_ran_or_in_the_future(
    ago_s: float, exited_at: float
) -> None:
    step = JOB.step(running(running_at=1000.0), Exited(0, ago_s=ago_s), now=3000.0)
    assert step.record.exited_at == exited_at


def test_a_program_that_ended_while_it_was_being_stopped_keeps_its_own_time() -> None:
    job = JOB.step(running(running_at=0.0), STOP, now=50.0).record
    job = JOB.step(job, Exited(143, signal=15, ago_s=4.0), now=60.0).record
    assert (job.exited_at, job.exit_code) == (56.0, 143)


def test_how_it_ended_is_asked_of_whoever_removes_the_task_where_nobody_told() -> None:
    """Nobody waits for the runner of an aborted job: its exit code would be gone with its task."""
    assert walk(JOB, running(), ABORT, CleanedUp(Cleanup.STOP))[1][-1] == RemoveTask(known=False)
    assert walk(JOB, running(), STOP, Exited(143, signal=15))[1][-1] == RemoveTask(known=True)
    assert walk(JOB, running(), Exited(0))[1] == [RemoveTask(known=True)]
