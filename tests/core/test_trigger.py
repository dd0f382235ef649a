"""A schedule by hand and by a strange clock: triggered, paused, resumed, set back, missed, and never twice."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from stoker.core.job_facts import CleanedUp, Cleanup, Exited
from stoker.core.machine import TimeUp
from stoker.core.reason import RunReason
from stoker.core.round import QUEUED, SKIPPED, TRIGGERED
from stoker.core.run import deadline
from stoker.core.run_facts import PauseAsked, ReplicasWanted, ResumeAsked, S, TriggerAsked
from stoker.core.schedule import Overlap, Schedule, next_after, parse_schedule, triggers_after
from tests.core.living import ALWAYS, Life

HOUR, MINUTE, DAY = 3600.0, 60.0, 86_400.0
SKIP = Schedule(("0 * * * *",))
QUEUE = Schedule(("0 * * * *",), overlap=Overlap.QUEUE)
BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"


def notes(life: Life, event: Any) -> list[str]:
    return [one.note for one in life.ask(event).moved if one.note]


def ended(life: Life, exit_code: int = 0) -> Life:
    life.tell(life.job(), Exited(exit_code), CleanedUp(Cleanup.REMOVE))
    return life


def at(text: str, zone: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def rounds_until(life: Life, until: float) -> list[str]:
    """Lets the clock run; each round takes a minute. When they began, as UTC."""
    begun = []
    while (due := deadline(life.run)) is not None and due <= until:
        life.rings()
        if life.run.state is S.SUBMITTED:
            begun.append(datetime.fromtimestamp(life.now, UTC).strftime("%m-%d %H:%M"))
            ended(life.starts().wait(MINUTE))
    return begun


def test_a_trigger_by_hand_starts_a_round_whatever_the_clock_says_and_costs_none_of_the_clocks() -> None:
    life = Life(schedule=SKIP).wait(600)
    assert notes(life, TriggerAsked(by="ada")) == [TRIGGERED]
    assert (life.run.state, life.run.round, life.run.trigger_at) == (S.SUBMITTED, 1, HOUR)
    ended(life.starts())
    life.rings()
    assert (life.now, life.run.round) == (HOUR, 2)


@pytest.mark.parametrize(("schedule", "told", "rounds"), [(SKIP, SKIPPED, 1), (QUEUE, QUEUED, 2)])
def test_a_trigger_by_hand_while_a_round_runs_goes_by_the_overlap_and_says_so(
    schedule: Schedule, told: str, rounds: int
) -> None:
    life = Life(schedule=schedule)
    life.ask(TriggerAsked())
    life.starts()
    assert notes(life, TriggerAsked()) == [told]
    ended(life)
    life.ask(TimeUp())
    assert life.run.round == rounds


@pytest.mark.parametrize(("schedule", "told", "rounds"), [(SKIP, SKIPPED, 1), (QUEUE, QUEUED, 2)])
def test_a_trigger_by_hand_while_a_round_ends_or_backs_off_goes_by_the_overlap(
    schedule: Schedule, told: str, rounds: int
) -> None:
    life = Life(schedule=schedule, retry=ALWAYS)
    life.ask(TriggerAsked())
    ended(life.starts(), exit_code=1)
    assert (life.run.state, notes(life, TriggerAsked())) == (S.PENDING, [told])
    life.rings()
    life.starts().tell(life.job(), Exited(0))
    assert (life.run.state, life.run.round, notes(life, TriggerAsked())) == (S.TERMINATING, 1, [told])
    life.tell(life.job(), CleanedUp(Cleanup.REMOVE))
    life.ask(TimeUp())
    assert life.run.round == rounds


def test_what_has_no_schedule_is_not_triggered_paused_or_resumed() -> None:
    life = Life()
    for event in (TriggerAsked(), PauseAsked(), ResumeAsked()):
        assert life.ask(event).moved == []


def test_a_paused_schedule_triggers_nothing_and_resuming_makes_up_for_nothing() -> None:
    life = Life(schedule=SKIP)
    assert notes(life, PauseAsked(by="ada")) == ["its schedule is paused"]
    assert (life.run.state, deadline(life.run)) == (S.PENDING, None)
    assert life.ask(PauseAsked()).moved == []
    life.wait(5.5 * HOUR).ask(TimeUp())
    assert life.run.round == 0
    life.ask(ResumeAsked())
    assert (life.run.state, life.run.trigger_at) == (S.PENDING, 6 * HOUR)
    assert life.ask(ResumeAsked()).moved == []


def test_a_round_that_runs_goes_on_while_its_schedule_is_paused() -> None:
    """And what was queued behind it is not run after it."""
    life = Life(schedule=QUEUE)
    life.rings()
    life.starts().rings()
    assert life.run.queued
    life.ask(PauseAsked())
    assert (life.run.state, life.job().state.name) == (S.RUNNING, "RUNNING")
    ended(life)
    assert (life.run.state, life.run.round, deadline(life.run)) == (S.PENDING, 1, None)


def test_a_paused_schedule_can_be_triggered_by_hand() -> None:
    life = Life(schedule=SKIP)
    life.ask(PauseAsked())
    life.ask(TriggerAsked())
    assert life.run.state is S.SUBMITTED
    ended(life.starts())
    assert (life.run.state, life.run.round, deadline(life.run)) == (S.PENDING, 1, None)


def test_the_autoscaler_starts_no_round_of_a_paused_schedule() -> None:
    life = Life(schedule=SKIP, service=True)
    life.ask(PauseAsked())
    life.ask(ReplicasWanted(2))
    assert (life.run.state, life.jobs) == (S.PENDING, [])


def test_a_clock_that_is_set_back_repeats_no_round() -> None:
    """Three o'clock came and was served; at half past two, the second one of that day, the round ends."""
    life = Life(now=2 * HOUR, schedule=parse_schedule("0 3 * * *"))
    life.rings()
    life.starts().wait(-HOUR / 2)
    ended(life)
    assert (life.run.state, life.run.trigger_at) == (S.PENDING, 3 * HOUR + DAY)
    life.ask(TriggerAsked())
    assert life.run.trigger_at == 3 * HOUR + DAY


@pytest.mark.parametrize(
    ("zone", "days", "begun"),
    [
        (BERLIN, ("2025-03-29", "2025-04-01"), ["03-29 01:30", "03-30 01:00", "03-31 00:30"]),
        (BERLIN, ("2025-10-25", "2025-10-28"), ["10-25 00:30", "10-26 00:30", "10-27 01:30"]),
        (NEW_YORK, ("2025-03-08", "2025-03-11"), ["03-08 07:30", "03-09 07:00", "03-10 06:30"]),
        (NEW_YORK, ("2025-11-01", "2025-11-04"), ["11-01 06:30", "11-02 07:30", "11-03 07:30"]),
    ],
)
def test_a_line_at_half_past_two_runs_once_on_both_strange_nights(
    zone: str, days: tuple[str, str], begun: list[str]
) -> None:
    """In the gap it runs when the clock has jumped; where it comes twice, the first time only."""
    first, last = (at(f"{day} 00:00", zone) for day in days)
    assert rounds_until(Life(now=first, schedule=parse_schedule("30 2 * * *", zone)), last) == begun


def test_half_past_one_comes_twice_in_new_york_and_runs_once() -> None:
    first, last = at("2025-11-01 12:00", NEW_YORK), at("2025-11-03 12:00", NEW_YORK)
    life = Life(now=first, schedule=parse_schedule("30 1 * * *", NEW_YORK))
    assert rounds_until(life, last) == ["11-02 05:30", "11-03 06:30"]


@pytest.mark.parametrize(("overlap", "rounds", "skips"), [("skip", 4, 8), ("queue", 4, 0)])
def test_every_minute_with_a_job_of_three_minutes(overlap: str, rounds: int, skips: int) -> None:
    """In twelve minutes: skip leaves out what it says it leaves out; queue runs one after the other, never two."""
    life = Life(schedule=parse_schedule("* * * * *", overlap=overlap))
    told: list[str] = []
    life.wait(MINUTE)
    told += notes(life, TimeUp())
    for minute in range(2, 14):
        life.starts()
        life.now = minute * MINUTE - 1
        if minute % 3 == 1:
            outcome = life.tell(life.job(), Exited(0), CleanedUp(Cleanup.REMOVE))
            told += [one.note for one in outcome.moved if one.note and one.kind == "run"]
            if overlap == "queue":
                told += notes(life, TimeUp())
                continue
        life.now = minute * MINUTE
        told += notes(life, TimeUp())
    assert sum(note.startswith(TRIGGERED) for note in told) == rounds + 1
    assert life.run.round == rounds + 1
    assert sum(SKIPPED in note for note in told) == skips


def test_a_trigger_that_passes_while_a_round_is_cleaned_up_is_said_to_be_skipped() -> None:
    life = Life(schedule=SKIP)
    life.rings()
    life.starts().tell(life.job(), Exited(0))
    outcome = life.wait(HOUR + 1).tell(life.job(), CleanedUp(Cleanup.REMOVE))
    assert f"round 1 ended: ALL_JOBS_DONE; {SKIPPED}" in [one.note for one in outcome.moved]


def test_a_trigger_that_was_missed_says_that_it_is_late() -> None:
    life = Life(schedule=SKIP).wait(3.5 * HOUR)
    assert notes(life, TimeUp()) == ["triggered late: it was due at 1970-01-01 01:00 UTC"]


def test_how_the_last_round_ended_is_known_while_the_next_one_runs() -> None:
    life = Life(schedule=SKIP)
    life.rings()
    ended(life.starts(), exit_code=3)
    life.rings()
    assert (life.run.state, life.run.reason, life.run.last_reason) == (S.SUBMITTED, None, RunReason.JOB_FAILED)


def test_the_29th_of_february_comes_in_leap_years_only() -> None:
    leap = parse_schedule("0 12 29 2 *")
    days = [f"{datetime.fromtimestamp(one, UTC):%Y-%m-%d}" for one in triggers_after(leap, at("2026-01-01", "UTC"), 3)]
    assert days == ["2028-02-29", "2032-02-29", "2036-02-29"]


def test_a_line_that_never_comes_again_waits_without_a_deadline() -> None:
    """At the end of the calendar: nothing breaks, and a person can still trigger it."""
    end = at("9999-12-31 23:30", "UTC")
    assert next_after(parse_schedule("0 12 29 2 *"), end) is None
    assert triggers_after(parse_schedule("0 12 29 2 *"), end, 5) == ()
    life = Life(now=end, schedule=parse_schedule("0 12 29 2 *"))
    assert (life.run.state, deadline(life.run)) == (S.PENDING, None)
    life.ask(TriggerAsked())
    ended(life.starts())
    assert (life.run.state, life.run.round, deadline(life.run)) == (S.PENDING, 1, None)
