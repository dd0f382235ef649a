"""A run and its jobs together: replicas that fail, retries and their budget, and scaling."""

from dataclasses import replace

import pytest

from stoker.core.family import bear, found, job_id
from stoker.core.job import deadline
from stoker.core.job_facts import (
    AgentFailed,
    CleanedUp,
    Cleanup,
    Exited,
    Freed,
    InstanceGone,
    Interrupted,
    NoCapacity,
    Placed,
    Reserved,
    RunnerAccepted,
    Silent,
    TaskAccepted,
)
from stoker.core.job_facts import S as J
from stoker.core.machine import Event
from stoker.core.policy import Disconnect, Policy, StopCriteria
from stoker.core.reason import JobReason, RetryEvent, RunReason
from stoker.core.retry import Budget, Fate, Retry
from stoker.core.run_facts import AbortAsked, ReplicasWanted, S
from tests.core.living import ALWAYS, PROJECT_ID, RUN_ID, Life, machine

GONE = (CleanedUp(Cleanup.STOP), CleanedUp(Cleanup.REMOVE))


def cleaned(life: Life) -> Life:
    """Everything that is ending has ended."""
    for job in life.jobs:
        if job.state is J.TERMINATING:
            life.tell(job, *GONE)
    return life


def resumed(life: Life) -> Life:
    """What failed is gone, the backoff is over, and the new submissions run."""
    assert life.run.state is S.PENDING
    assert cleaned(life).rings()
    life.starts()
    assert life.states() == [J.RUNNING] * len(life.states())
    return life


def test_one_replica_fails_and_is_tried_again_in_place_while_another_is_active() -> None:
    life = Life(replicas=2, retry=ALWAYS).starts()
    life.tell(life.job(1), Exited(1))
    first, second = life.tries(1)
    assert (first.state, first.latest, first.fate) == (J.TERMINATING, False, Fate.RETRY)
    assert (second.state, second.attempt, second.budget) == (J.SUBMITTED, 2, Budget(2, 0.0, 1))
    assert (life.run.state, life.job(0).attempt) == (S.RUNNING, 1)


def test_a_replica_that_fails_again_and_again_in_place_waits_longer_each_time() -> None:
    """Once is bad luck and is tried at once; a crash loop beside a healthy replica must not spin."""
    life = Life(replicas=2, nodes=2, retry=ALWAYS, start_timeout_s=300).starts()
    waits = []
    for _ in range(8):
        life.starts(*(job for job in life.jobs if job.state is J.SUBMITTED))
        life.tell(life.job(1, 1), Exited(1))
        assert life.job(1, 0).ready_at == life.job(1, 1).ready_at
        waits.append((life.job(1, 1).ready_at or life.now) - life.now)
        life.now = life.job(1, 1).ready_at or life.now
    for wait, plain in zip(waits, (0, 15, 30, 60, 120, 300, 600, 600), strict=True):
        assert 0.9 * plain <= wait <= 1.1 * plain
    late = deadline(replace(life.job(1, 1), ready_at=None))
    assert late == life.now + 300, "the limit to start counts from when it may"


def test_a_whole_replica_of_several_nodes_is_tried_again() -> None:
    """One of two nodes lost its GPU: its sibling is stopped within the commit, both get new submissions, once."""
    life = Life(replicas=2, nodes=2, retry=ALWAYS).starts()
    life.tell(life.job(1, 0), Exited(1))
    assert [job.state for job in life.tries(1, 1)] == [J.TERMINATING, J.SUBMITTED]
    assert len(life.jobs) == 6
    assert life.tries(1, 1)[0].reason is JobReason.TERMINATED_BY_SERVER
    assert [job.attempt for job in (life.job(0, 0), life.job(0, 1))] == [1, 1]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_node_that_is_done_already_is_tried_again_with_its_replica(replicas: int) -> None:
    """A multi-node replica succeeds or is retried as a whole: half a collective is none."""
    life = Life(replicas=replicas, nodes=2, retry=ALWAYS).starts()
    done = life.job(0, 0)
    life.tell(done, Exited(0), *GONE)
    life.tell(life.job(0, 1), Exited(1))
    if replicas == 1:
        resumed(life)
    assert life.family.jobs[done.id].state is J.DONE
    assert [len(life.tries(0, node)) for node in (0, 1)] == [2, 2]
    assert life.job(0, 0).budget == life.job(0, 1).budget


def test_without_an_active_replica_the_run_waits_and_then_resubmits() -> None:
    life = Life(retry=ALWAYS).starts()
    life.tell(life.job(), Exited(1))
    assert (life.run.state, len(life.jobs)) == (S.PENDING, 1)
    resumed(life)
    assert (life.run.state, life.job().attempt) == (S.RUNNING, 2)


def test_when_one_node_fails_for_good_the_others_are_stopped_at_once() -> None:
    life = Life(nodes=3).starts()
    life.tell(life.job(0, 2), Exited(1))
    assert (life.run.state, life.run.reason, life.run.exit_code) == (S.TERMINATING, RunReason.JOB_FAILED, 1)
    assert life.states() == [J.TERMINATING] * 3
    assert cleaned(life).run.state is S.FAILED


def test_the_budget_travels_with_the_submissions() -> None:
    """`max_attempts: 3`: two retries, wherever they happen, and then the run says that the limit is exceeded."""
    life = Life(retry=Retry(frozenset(RetryEvent), max_attempts=3)).starts()
    for _ in range(2):
        life.tell(life.job(), Exited(1))
        resumed(life)
    life.tell(life.job(), Exited(1))
    assert (life.run.state, life.run.reason) == (S.TERMINATING, RunReason.RETRY_LIMIT_EXCEEDED)


def test_the_budget_is_one_for_all_nodes_of_a_replica() -> None:
    """Nodes that take turns in failing do not get a try each."""
    life = Life(nodes=2, retry=Retry(frozenset(RetryEvent), max_attempts=2)).starts()
    life.tell(life.job(0, 0), Exited(1))
    resumed(life)
    life.tell(life.job(0, 1), Exited(1))
    assert life.run.reason is RunReason.RETRY_LIMIT_EXCEEDED


def test_a_chosen_exit_code_costs_no_node_of_the_replica_anything() -> None:
    retry = Retry(frozenset(RetryEvent), max_attempts=2, on_exit_codes=frozenset({42}))
    life = Life(nodes=2, retry=retry).starts()
    for _ in range(5):
        life.tell(life.job(0, 0), Exited(42))
        resumed(life)
    assert [life.job(0, node).budget.tries for node in (0, 1)] == [1, 1]
    life.tell(life.job(0, 1), Exited(1))
    assert life.run.state is S.PENDING


def test_the_retry_duration_starts_anew_after_ten_healthy_minutes() -> None:
    life = Life(retry=Retry(frozenset(RetryEvent), duration_s=60)).starts()
    life.tell(life.job(), Exited(1))
    resumed(life).wait(600)
    life.tell(life.job(), Exited(1))
    assert life.run.state is S.PENDING
    resumed(life).wait(599)
    life.tell(life.job(), Exited(1))
    assert life.run.reason is RunReason.RETRY_LIMIT_EXCEEDED


def test_a_machine_that_is_silent_for_twenty_minutes_does_not_renew_the_duration() -> None:
    """It falls silent a minute after each start: that is a failure that goes on, not twenty healthy minutes."""
    life = Life(retry=Retry(frozenset(RetryEvent), duration_s=600))
    for _ in range(2):
        job = life.job()
        life.tell(job, Placed(machine(5), (0,), owned=False), TaskAccepted(), RunnerAccepted())
        life.wait(60).tell(job, Silent())
        life.rings()
        life.tell(job, InstanceGone(machine(5)), CleanedUp(Cleanup.RELEASE))
        if life.run.state is S.PENDING:
            life.rings()
    assert life.run.reason is RunReason.RETRY_LIMIT_EXCEEDED


def test_a_new_submission_waits_beside_the_old_one_and_both_count() -> None:
    """It may be queued at once, but the run is not over before the old one is gone."""
    life = Life(replicas=2, retry=ALWAYS, disconnect=Disconnect(60, 90)).starts()
    life.tell(life.job(1), Silent())
    life.rings()
    assert [job.state for job in life.tries(1)] == [J.TERMINATING, J.SUBMITTED]
    assert life.tries(1)[0].reason is JobReason.INSTANCE_UNREACHABLE
    assert life.run.tally.unfinished == 3


def test_late_news_of_a_replaced_submission_does_not_fail_the_run() -> None:
    life = Life(replicas=2, retry=Retry(frozenset({RetryEvent.ERROR}))).starts()
    old = life.job(1)
    life.tell(old, Exited(1))
    life.tell(old, AgentFailed(JobReason.EXECUTOR_ERROR), *GONE)
    assert (life.run.state, life.job(1).state) == (S.RUNNING, J.SUBMITTED)


def test_all_jobs_done_is_done() -> None:
    life = Life(replicas=2).starts()
    life.tell(life.job(0), Exited(0))
    assert life.run.state is S.RUNNING
    life.tell(life.job(1), Exited(0))
    assert (life.run.state, life.run.reason) == (S.TERMINATING, RunReason.ALL_JOBS_DONE)
    assert cleaned(life).run.state is S.DONE


def test_the_master_is_done_and_the_workers_end_as_done() -> None:
    life = Life(nodes=3, stop_criteria=StopCriteria.MASTER_DONE).starts()
    life.tell(life.job(0, 1), Exited(0))
    assert life.run.reason is None
    life.tell(life.job(0, 0), Exited(0))
    assert life.run.reason == RunReason.ALL_JOBS_DONE
    assert [job.state for job in cleaned(life).jobs] == [J.DONE] * 3


@pytest.mark.parametrize("news", [Interrupted(machine(2)), InstanceGone(machine(2))])
def test_a_node_that_waits_again_takes_its_replica_with_it(news: Event) -> None:
    """A machine was free for one node, the launch for the other was refused: the first one keeps no machine that
    somebody else could use, and both are looked for a place together. The other replica goes on."""
    life = Life(replicas=2, nodes=2)
    for place, node in enumerate((life.job(0, 0), life.job(0, 1), life.job(1, 0), life.job(1, 1)), start=1):
        life.tell(node, Reserved(machine(place), (0,)))
    life.sends.clear()
    life.tell(life.job(0, 1), news)
    assert [life.job(0, node).instance_id for node in (0, 1)] == [None, None]
    assert [life.job(1, node).instance_id for node in (0, 1)] == [machine(3), machine(4)]
    first, second = life.job(0, 0), life.job(0, 1)
    assert [(send.id, send.event) for send in life.sends] == [
        (machine(2), Freed(second.id)),
        (machine(1), Freed(first.id)),
    ]
    assert life.states() == [J.SUBMITTED] * 4
    assert {(job.attempt, job.budget) for job in life.jobs} == {(1, Budget())}


def test_no_capacity_of_a_whole_gang_is_said_to_each_and_counts_once() -> None:
    life = Life(nodes=2, retry=Retry(frozenset({RetryEvent.NO_CAPACITY})))
    for job in life.jobs:
        life.tell(job, NoCapacity("full"))
    assert (life.run.state, life.states(), life.job().budget.tries) == (S.PENDING, [J.FAILED, J.TERMINATED], 2)


def test_scaling_down_ends_the_last_replicas_which_then_do_not_contribute() -> None:
    life = Life(replicas=3, service=True).starts()
    life.ask(ReplicasWanted(1))
    assert life.states() == [J.RUNNING, J.TERMINATING, J.TERMINATING]
    assert life.job(2).reason is JobReason.SCALED_DOWN
    assert (cleaned(life).run.state, life.run.tally.contributing) == (S.RUNNING, 1)


def test_a_replica_of_which_a_part_was_done_is_scaled_away_and_back_as_a_whole() -> None:
    life = Life(replicas=2, nodes=2, service=True).starts()
    life.tell(life.job(1, 0), Exited(0))
    life.ask(ReplicasWanted(1))
    assert (life.run.tally.contributing, life.run.tally.gone) == (2, 2)
    life.ask(ReplicasWanted(2))
    assert [life.job(1, node).attempt for node in (0, 1)] == [2, 2]


def test_scaled_to_zero_it_is_pending_and_wakes_when_the_autoscaler_wants_replicas() -> None:
    """The old replica is still in its grace when traffic comes back: a new submission, not the old one."""
    life = Life(service=True).starts()
    life.ask(ReplicasWanted(0))
    assert life.run.state is S.PENDING
    life.ask(ReplicasWanted(2))
    assert (life.run.state, [job.attempt for job in life.tries(0)]) == (S.SUBMITTED, [1, 2])
    assert life.job(1).attempt == 1


def test_a_replica_that_waits_for_its_retry_may_be_scaled_away() -> None:
    """Everything failed, and while the run backs off nothing is wanted any more: it sleeps, it does not try on."""
    life = Life(nodes=2, replicas=2, service=True, retry=ALWAYS)
    life.ask(ReplicasWanted(1))
    life.tell(life.job(0), NoCapacity())
    life.ask(ReplicasWanted(2))
    life.rings()
    life.tell(life.job(0), NoCapacity())
    life.ask(ReplicasWanted(1))
    life.tell(life.job(0), NoCapacity())
    assert life.run.state is S.PENDING
    life.ask(ReplicasWanted(0))
    life.rings()
    assert (life.run.state, life.run.tally.retry, life.run.tally.gone) == (S.PENDING, 0, 4)
    assert (life.run.resume_at, life.wishes) == (None, [])


def test_the_autoscaler_does_not_cut_a_backoff_short() -> None:
    life = Life(service=True, retry=ALWAYS).starts()
    life.tell(life.job(), Exited(1))
    resume_at = life.run.resume_at
    life.ask(ReplicasWanted(4))
    assert (life.run.state, life.run.replicas, life.run.resume_at) == (S.PENDING, 4, resume_at)
    life.rings()
    assert life.run.tally.submitted == 4


def test_an_abort_reaches_a_replica_that_was_scaled_down_with_a_long_grace() -> None:
    life = Life(replicas=2, service=True, stop_duration_s=3600).starts()
    life.ask(ReplicasWanted(1))
    life.tell(life.job(1), CleanedUp(Cleanup.UNREGISTER))
    assert life.job(1).cleanup is Cleanup.STOP
    life.ask(AbortAsked())
    assert (life.job(1).cleanup, life.job(1).reason) == (Cleanup.REMOVE, JobReason.SCALED_DOWN)


def test_a_submission_of_the_same_job_has_an_id_without_dice() -> None:
    """A batch that is stepped anew makes the same jobs."""
    run = found(RUN_ID, PROJECT_ID, "r", Policy(replicas=2), 5.0)
    assert bear(run, 5.0)[0].jobs == bear(run, 5.0)[0].jobs
    assert len({job_id(run, replica, node, n, 5.0) for replica in (0, 1) for node in (0, 1) for n in (1, 2)}) == 8


def test_a_run_ended_when_the_last_of_its_programs_did() -> None:
    """Both were heard of much later, and cleaning up took its time."""
    life = Life(replicas=2).starts()
    began = life.now
    life.now = began + 5000.0
    life.tell(life.job(0), Exited(0, ago_s=3000.0))
    life.tell(life.job(1), Exited(0, ago_s=4000.0))
    life.now = began + 5010.0
    cleaned(life)
    assert (life.run.state, life.run.ended_at) == (S.DONE, began + 2000.0)


def test_a_run_may_have_only_some_of_its_replicas() -> None:
    """What another run did not get done is done again under the numbers that it had there."""
    life = Life(replicas=5, only=(1, 4), retry=ALWAYS).starts()
    assert sorted(job.replica for job in life.jobs) == [1, 4]
    life.tell(life.job(4), Exited(1))
    assert [job.attempt for job in life.tries(4)] == [1, 2]
    life.tell(life.job(1), Exited(0))
    cleaned(life).starts()
    life.tell(life.job(4), Exited(0))
    assert cleaned(life).run.state is S.DONE
