"""The rounds of a scheduled run: triggers, overlap, what was missed, and how a schedule ends."""

from typing import Any

import pytest

from stoker.core.job_facts import AskStop, CleanedUp, Cleanup, Exited
from stoker.core.job_facts import S as J
from stoker.core.machine import Event, TimeUp
from stoker.core.reason import JobReason, RunReason
from stoker.core.retry import FIRST_TRY
from stoker.core.run import deadline
from stoker.core.run_facts import AbortAsked, Broke, ReplicasWanted, S, StopAsked
from stoker.core.schedule import Overlap, Schedule
from tests.core.living import ALWAYS, Life

HOUR = 3600.0
SKIP = Schedule(("0 * * * *",))
QUEUE = Schedule(("0 * * * *",), overlap=Overlap.QUEUE)


def triggered(schedule: Schedule = SKIP, **policy: Any) -> Life:
    """In its first round, at one o'clock, its jobs running."""
    life = Life(schedule=schedule, **policy)
    assert life.rings()
    assert (life.now, life.run.state, life.run.round) == (HOUR, S.SUBMITTED, 1)
    return life.starts()


def ended(life: Life, *exits: Event) -> Life:
    """The round's program ends and is cleaned up."""
    for event in exits or (Exited(0),):
        life.tell(life.job(), event)
    life.tell(life.job(), CleanedUp(Cleanup.REMOVE))
    return life


def test_it_waits_for_its_first_trigger_and_then_submits() -> None:
    life = Life(schedule=SKIP)
    assert (life.run.state, deadline(life.run)) == (S.PENDING, HOUR)
    life.wait(HOUR - 1).ask(TimeUp())
    assert life.jobs == []
    life.wait(1).ask(TimeUp())
    assert (life.run.state, life.states(), life.run.trigger_at) == (S.SUBMITTED, [J.SUBMITTED], 2 * HOUR)


def test_a_round_that_ended_waits_for_the_next_trigger() -> None:
    """TERMINATING to PENDING, with the outcome of the round to be read until the next one begins."""
    life = ended(triggered())
    assert (life.run.state, life.run.reason, life.run.trigger_at) == (S.PENDING, RunReason.ALL_JOBS_DONE, 2 * HOUR)
    life.rings()
    assert (life.run.round, life.run.reason, life.run.exit_code) == (2, None, None)
    assert [(job.round, job.attempt) for job in life.tries()] == [(1, 1), (2, 2)]


@pytest.mark.parametrize("reason", [RunReason.SERVER_ERROR, RunReason.GATEWAY_ERROR])
def test_a_round_that_failed_or_was_broken_ends_no_schedule(reason: RunReason) -> None:
    """What went wrong last night is not said of the next night any more."""
    life = ended(triggered(), Exited(1))
    assert (life.run.state, life.run.reason) == (S.PENDING, RunReason.JOB_FAILED)
    life.rings()
    life.starts().ask(Broke(reason, "disk full"))
    ended(life)
    assert (life.run.state, life.run.message) == (S.PENDING, "disk full")
    life.rings()
    assert life.run.message == ""


def test_each_round_has_a_fresh_budget_of_retries() -> None:
    life = triggered(retry=ALWAYS)
    life.tell(life.job(), Exited(1), CleanedUp(Cleanup.REMOVE))
    assert life.run.resume_at is not None
    life.rings()
    assert life.job().budget.tries == 2
    life.starts()
    ended(life).rings()
    assert (life.run.round, life.job().budget) == (2, FIRST_TRY)


def test_overlap_skip_leaves_out_a_trigger_while_the_last_round_still_runs() -> None:
    life = triggered()
    life.rings()
    assert (life.run.state, life.run.round, life.run.trigger_at) == (S.RUNNING, 1, 3 * HOUR)
    assert ended(life.wait(60)).run.trigger_at == 3 * HOUR


def test_overlap_queue_runs_it_as_soon_as_the_last_round_has_ended() -> None:
    """And once, however many triggers came meanwhile."""
    life = triggered(QUEUE)
    life.rings()
    life.rings()
    ended(life.wait(60))
    assert (life.run.state, life.run.trigger_at) == (S.PENDING, life.now)
    life.rings()
    assert (life.run.state, life.run.round, life.run.trigger_at) == (S.SUBMITTED, 2, 4 * HOUR)
    assert not life.run.queued


@pytest.mark.parametrize(("schedule", "rounds"), [(SKIP, 1), (QUEUE, 2)])
def test_a_round_that_is_being_cleaned_up_still_runs(schedule: Schedule, rounds: int) -> None:
    """Its program ended at 1:59:59 and the machine needs two seconds: the trigger of two o'clock is not lost."""
    life = triggered(schedule)
    life.wait(HOUR - 1).tell(life.job(), Exited(0))
    life.wait(2).tell(life.job(), CleanedUp(Cleanup.REMOVE))
    life.ask(TimeUp())
    assert life.run.round == rounds


def test_a_trigger_during_the_backoff_of_a_retry_waits_for_the_backoff() -> None:
    """The round is not over while a retry is to come: the trigger finds it running and is skipped."""
    life = triggered(retry=ALWAYS).wait(HOUR - 5)
    life.tell(life.job(), Exited(1), CleanedUp(Cleanup.REMOVE))
    assert life.run.resume_at is not None
    assert deadline(life.run) == life.run.resume_at > 2 * HOUR
    life.rings()
    assert (life.run.state, life.run.round, deadline(life.run)) == (S.SUBMITTED, 1, 2 * HOUR)
    life.rings()
    assert (life.run.round, life.run.trigger_at) == (1, 3 * HOUR)


def test_a_missed_trigger_runs_once_on_return() -> None:
    """The server was away for a day: one round, and the next one at the next full hour."""
    life = Life(schedule=SKIP).wait(25.5 * HOUR)
    life.ask(TimeUp())
    assert (life.run.round, life.run.trigger_at) == (1, 26 * HOUR)


@pytest.mark.parametrize(
    ("word", "reason"),
    [(StopAsked(), RunReason.STOPPED_BY_USER), (AbortAsked(), RunReason.ABORTED_BY_USER)],
)
def test_a_user_ends_the_schedule_between_rounds_in_one_and_while_one_ends(word: Event, reason: RunReason) -> None:
    between = Life(schedule=SKIP)
    between.ask(word)
    assert (between.run.state, between.run.reason, deadline(between.run)) == (S.TERMINATED, reason, None)

    during = triggered()
    during.ask(word)
    ended(during, Exited(143))
    assert (during.run.state, during.run.reason) == (S.TERMINATED, reason)

    ending = triggered()
    ending.tell(ending.job(), Exited(0))
    assert ending.run.state is S.TERMINATING
    ending.ask(word)
    ending.tell(ending.job(), CleanedUp(Cleanup.REMOVE))
    assert (ending.run.state, ending.run.reason) == (S.TERMINATED, reason)


def test_an_abort_while_a_round_ends_cuts_its_grace() -> None:
    life = triggered(nodes=2, stop_duration_s=HOUR)
    life.tell(life.job(0, 1), Exited(1))
    assert [type(wish.effect) for wish in life.wishes].count(AskStop) == 1
    life.ask(AbortAsked())
    assert (life.job(0, 0).cleanup, life.job(0, 0).reason) == (Cleanup.REMOVE, JobReason.TERMINATED_BY_SERVER)


def test_the_autoscaler_starts_no_round() -> None:
    """Between rounds only the clock does; what it wants is kept for the next one."""
    life = Life(schedule=SKIP, service=True)
    life.ask(ReplicasWanted(2))
    assert (life.run.state, life.jobs) == (S.PENDING, [])
    life.rings()
    assert life.run.tally.submitted == 2


def test_replicas_that_are_not_wanted_in_the_next_round_do_not_keep_it_from_ending() -> None:
    life = triggered(replicas=2, service=True)
    for replica in (0, 1):
        life.tell(life.job(replica), Exited(0), CleanedUp(Cleanup.UNREGISTER), CleanedUp(Cleanup.REMOVE))
    assert life.run.state is S.PENDING
    life.ask(ReplicasWanted(1))
    life.rings()
    assert (life.run.tally.submitted, life.run.tally.contributing, life.run.tally.gone) == (1, 1, 1)
