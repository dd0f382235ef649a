"""A run that is changed while it lives: held and released, and given another policy at once for all its jobs."""

import math
from dataclasses import replace

import pytest

from stoker.core import job as job_table
from stoker.core.job_facts import (
    AskStop,
    CleanedUp,
    Cleanup,
    Exited,
    NoCapacity,
    Placed,
    Reserved,
    RunnerAccepted,
    TaskAccepted,
    Warn,
)
from stoker.core.job_facts import S as J
from stoker.core.policy import Policy
from stoker.core.reason import JobReason
from stoker.core.retry import Retry
from stoker.core.revision import revised
from stoker.core.run import deadline
from stoker.core.run_facts import HoldAsked, ReleaseAsked, Revised, S, StopAsked
from stoker.core.schedule import Schedule, parse_schedule
from stoker.core.warning import Deadline
from tests.core.living import ALWAYS, Life, machine

HOURLY = Schedule(("0 * * * *",))


def revise(life: Life, **changes: object) -> bool:
    policy = replace(life.run.policy, **changes)  # type: ignore[arg-type]
    return bool(life.ask(Revised(policy, life.run.version, "changed")).moved)


def test_a_held_run_is_not_placed_until_it_is_released() -> None:
    life = Life(hold=True)
    assert (life.run.state, life.states()) == (S.SUBMITTED, [J.SUBMITTED])
    for event in (Placed(machine(1), (0,)), Reserved(machine(1), (0,)), NoCapacity()):
        assert life.tell(life.job(), event).moved == []
    life.ask(ReleaseAsked())
    life.starts()
    assert life.run.state is S.RUNNING


def test_the_time_in_which_it_was_held_is_no_waiting_for_a_machine() -> None:
    life = Life(start_timeout_s=60.0)
    life.wait(30).ask(HoldAsked())
    assert job_table.deadline(life.job()) is None
    life.wait(86_400).ask(ReleaseAsked())
    assert job_table.deadline(life.job()) == life.now + 60
    life.rings()
    assert life.job().reason is JobReason.WAITING_INSTANCE_LIMIT_EXCEEDED


def test_what_has_begun_is_not_held_but_what_has_not_is() -> None:
    one = Life()
    one.starts()
    assert one.ask(HoldAsked()).moved == []
    many = Life(replicas=2)
    many.starts(many.job(0))
    assert many.ask(HoldAsked()).moved
    assert many.tell(many.job(1), Placed(machine(1), (0,))).moved == []
    many.tell(many.job(0), Exited(0), CleanedUp(Cleanup.REMOVE))
    many.ask(ReleaseAsked())
    many.starts()
    assert many.states() == [J.DONE, J.RUNNING]


def test_holding_twice_and_releasing_what_is_not_held_changes_nothing() -> None:
    life = Life()
    assert life.ask(ReleaseAsked()).moved == []
    assert life.ask(HoldAsked()).moved
    assert life.ask(HoldAsked()).moved == []


def test_a_held_run_can_be_stopped() -> None:
    life = Life(hold=True)
    life.ask(StopAsked())
    assert life.run.state is S.TERMINATED


def test_a_new_max_duration_counts_at_once_for_what_runs() -> None:
    life = Life()
    life.starts().wait(100)
    assert job_table.deadline(life.job()) is None
    assert revise(life, max_duration_s=300.0)
    assert job_table.deadline(life.job()) == 300.0
    assert Warn(300.0, Deadline.MAX_DURATION) in [wish.effect for wish in life.wishes], "its runner counts too"
    assert revise(life, max_duration_s=50.0)
    life.rings()
    assert (life.now, life.job().reason) == (100.0, JobReason.MAX_DURATION_EXCEEDED)


@pytest.mark.parametrize(("was", "new", "at"), [(3600.0, 60.0, 160.0), (60.0, None, None), (None, 60.0, 160.0)])
def test_a_new_max_duration_reaches_a_runner_that_was_given_the_old_one(
    was: float | None, new: float | None, at: float | None
) -> None:
    """A node waits for the others, or its order is on its way, while somebody changes the file: its runner counts by
    what it was given, and would end the job by a limit that nobody wants any more."""
    life = Life(max_duration_s=was).wait(100)
    life.tell(life.job(), Placed(machine(1), (0,)), TaskAccepted())
    revise(life, max_duration_s=new)
    life.wishes.clear()
    life.tell(life.job(), RunnerAccepted(max_duration_s=was or math.inf))
    assert [wish.effect for wish in life.wishes] == [Warn(at, Deadline.MAX_DURATION)]
    assert job_table.deadline(life.job()) == at


def test_a_runner_that_was_given_the_new_max_duration_is_told_nothing() -> None:
    life = Life(max_duration_s=60.0)
    life.tell(life.job(), Placed(machine(1), (0,)), TaskAccepted())
    life.wishes.clear()
    life.tell(life.job(), RunnerAccepted(max_duration_s=60.0))
    assert life.wishes == []


def test_a_new_start_timeout_counts_at_once_for_what_waits() -> None:
    life = Life(start_timeout_s=60.0)
    revise(life, start_timeout_s=None)
    assert job_table.deadline(life.job()) is None
    revise(life, start_timeout_s=90.0)
    assert job_table.deadline(life.job()) == 90.0


def test_a_new_grace_and_a_new_retry_count_for_what_runs() -> None:
    life = Life()
    life.starts()
    revise(life, stop_duration_s=77.0, retry=ALWAYS)
    life.tell(life.job(), Exited(1), CleanedUp(Cleanup.REMOVE))
    assert life.run.state is S.PENDING
    life.rings()
    outcome = life.starts().ask(StopAsked())
    assert [wish.effect for wish in outcome.wishes] == [AskStop(77.0)]
    assert life.job().remove_at == life.now + 77


def test_jobs_that_come_later_go_by_the_new_policy() -> None:
    life = Life(retry=Retry(max_attempts=1, on_events=ALWAYS.on_events))
    revise(life, retry=ALWAYS, max_duration_s=5.0)
    life.starts().tell(life.job(), Exited(1), CleanedUp(Cleanup.REMOVE))
    life.rings()
    assert (life.job().attempt, life.job().policy.max_duration_s) == (2, 5.0)


def test_whoever_has_seen_an_older_version_changes_nothing() -> None:
    life = Life()
    seen = life.run.version
    assert life.ask(Revised(Policy(priority=90), seen)).moved
    assert life.ask(Revised(Policy(priority=10), seen)).moved == []
    assert life.run.policy.priority == 90


def test_what_ends_is_not_changed_any_more() -> None:
    life = Life()
    life.starts().ask(StopAsked())
    assert life.run.state is S.TERMINATING
    assert not revise(life, priority=90)


@pytest.mark.parametrize(("line", "at"), [("30 * * * *", 1800.0), ("0 * * * *", 3600.0)])
def test_a_new_schedule_is_waited_for_at_once(line: str, at: float) -> None:
    life = Life(schedule=HOURLY).wait(600)
    revise(life, schedule=parse_schedule(line))
    assert (life.run.state, deadline(life.run)) == (S.PENDING, at)


def test_a_retry_that_is_changed_stays_the_retry_of_the_same_replicas() -> None:
    """The file knows nothing of which replicas were left to do, nor that a retry is for one time."""
    life = Life(replicas=5, only=(3, 4), retry_of="the old one", retry=ALWAYS)
    wanted = Policy(replicas=5, retry=ALWAYS, priority=90, schedule=HOURLY)
    life.ask(Revised(revised(life.run.policy, wanted, hold_too=False), life.run.version))
    policy = life.run.policy
    assert (policy.only, policy.retry_of, policy.schedule, policy.priority) == ((3, 4), "the old one", None, 90)
    life.starts()
    for replica in (3, 4):
        life.tell(life.job(replica), Exited(1), CleanedUp(Cleanup.REMOVE))
    life.rings()
    assert {job.replica for job in life.jobs} == {3, 4}


def test_what_people_did_by_hand_outlives_a_new_file() -> None:
    """A schedule stays paused, and a run held or released, unless the file speaks of that."""
    current = Policy(schedule=replace(HOURLY, paused=True), hold=True)
    wanted = Policy(schedule=parse_schedule("30 * * * *"), priority=9)
    kept = revised(current, wanted, hold_too=False)
    assert kept.schedule is not None
    assert (kept.schedule.paused, kept.schedule.lines, kept.hold, kept.priority) == (True, ("30 * * * *",), True, 9)
    assert revised(current, wanted, hold_too=True).hold is False
