"""Scheduled runs start when people expect them to, also on the two strange nights of the year."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import UserError
from stoker.core.limits import MOST_CRON_LINES
from stoker.core.schedule import Overlap, Schedule, due, next_after, parse_schedule

BERLIN = "Europe/Berlin"
# When clocks are changed in 2025: Berlin twice, New York twice, Lord Howe (by half an hour) twice.
NIGHTS = [1743296400, 1761440400, 1741503600, 1762063200, 1743865200, 1759591800]


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def times(schedule: Schedule, after: float, n: int) -> list[str]:
    """The next triggers as UTC, short."""
    found = []
    for _ in range(n):
        after = next_after(schedule, after) or 0.0
        found.append(datetime.fromtimestamp(after, UTC).strftime("%m-%d %H:%M"))
    return found


def test_a_nightly_run_follows_the_zone_it_was_written_in() -> None:
    """02:30 in Berlin is 01:30 UTC in winter and 00:30 in summer."""
    nightly = parse_schedule("30 2 * * *", BERLIN)
    assert times(nightly, at("2025-01-10 12:00"), 1) == ["01-11 01:30"]
    assert times(nightly, at("2025-07-10 12:00"), 1) == ["07-11 00:30"]
    assert times(parse_schedule("30 2 * * *"), at("2025-07-10 12:00"), 1) == ["07-11 02:30"]


def test_a_time_that_does_not_exist_runs_when_the_clock_has_jumped() -> None:
    """On 30 March 2025 Berlin goes from 02:00 to 03:00: the nightly run at 02:30 is not lost, it runs at 03:00."""
    nightly = parse_schedule("30 2 * * *", BERLIN)
    assert times(nightly, at("2025-03-29 12:00"), 2) == ["03-30 01:00", "03-31 00:30"]


def test_several_lost_times_of_one_line_run_once() -> None:
    """02:00 and 02:30 both fall into the gap, and become one 03:00."""
    twice = parse_schedule("0,30 2 * * *", BERLIN)
    assert times(twice, at("2025-03-30 00:30"), 2) == ["03-30 01:00", "03-31 00:00"]


def test_a_time_that_exists_twice_runs_once() -> None:
    """On 26 October 2025 02:30 comes twice in Berlin: the nightly run takes the first."""
    nightly = parse_schedule("30 2 * * *", BERLIN)
    assert times(nightly, at("2025-10-25 12:00"), 2) == ["10-26 00:30", "10-27 01:30"]


def test_asking_within_the_second_of_two_equal_hours_never_answers_with_the_past() -> None:
    """The server restarts at 02:15, the second one of that night: the run at the first 02:30 is over."""
    nightly = parse_schedule("30 2 * * *", BERLIN)
    second = at("2025-10-26 02:15", BERLIN, fold=1)
    assert times(nightly, second, 1) == ["10-27 01:30"]


@pytest.mark.parametrize("night", ["2025-03-30 00:00", "2025-10-26 00:00"])
def test_every_half_hour_stays_every_half_hour(night: str) -> None:
    """A heartbeat job neither pauses for an hour nor runs twice as often when the clock is changed."""
    after = at(night)
    half_hourly = parse_schedule("*/30 * * * *", BERLIN)
    for step in range(1, 9):
        assert next_after(half_hourly, after + (step - 1) * 1800) == after + step * 1800


def test_several_lines_are_one_schedule() -> None:
    """Weekdays at nine, and Saturday at noon."""
    schedule = parse_schedule(["0 9 * * 1-5", "0 12 * * SAT"])
    assert times(schedule, at("2025-05-01 10:00"), 3) == ["05-02 09:00", "05-03 12:00", "05-05 09:00"]


def test_triggers_missed_while_the_server_was_down_run_once() -> None:
    """Hourly, and the server was away for a night: one round on return, the next at the full hour."""
    hourly = parse_schedule("0 * * * *")
    last, back = at("2025-05-01 20:00"), at("2025-05-02 06:10")
    assert due(hourly, last, back)
    assert not due(hourly, back, back + 600)
    assert due(hourly, back, at("2025-05-02 07:00"))


def test_a_trigger_is_due_from_its_very_second() -> None:
    """Not a second early, and the same second again is not a second trigger."""
    hourly, hour = parse_schedule("0 * * * *"), at("2025-05-01 20:00")
    assert not due(hourly, hour - 60, hour - 0.001)
    assert due(hourly, hour - 60, hour)
    assert not due(hourly, hour, hour + 1)


@pytest.mark.parametrize(
    ("cron", "says"),
    [
        ("0 0 30 2 *", "not a cron line that can match: Bad day-of-month"),
        ("0 0 31 4,6,9,11 *", "not a cron line that can match"),
        ("61 * * * *", "Bad minute"),
        ("* * *", "expected a cron line of five fields"),
        ("0 * * * * *", "expected a cron line of five fields"),
        ("@daily", "expected a cron line of five fields"),
        ("0 0 * * " + "1," * 200 + "1", "expected a cron line of five fields"),
        ([], "expected 1 to"),
        (["0 0 * * *"] * (MOST_CRON_LINES + 1), "expected 1 to"),
        ([7], "expected a cron line of five fields"),
    ],
)
def test_a_line_that_is_wrong_or_never_comes_is_refused(cron: Any, says: str) -> None:
    """30 February: better told at submission than waited for."""
    with pytest.raises(UserError) as refused:
        parse_schedule(cron)
    assert says in refused.value.sentence
    assert "30 2 * * *" in refused.value.hint


@pytest.mark.parametrize("zone", ["Berlin", "Europe", "../etc/passwd", "/etc/passwd", "", "Europe/Berlin\0", None])
def test_a_zone_that_is_none_is_refused(zone: Any) -> None:
    """Names come from the public time zone database, and from nowhere else."""
    with pytest.raises(UserError, match="is not a time zone"):
        parse_schedule("0 0 * * *", zone)


def test_overlap_is_skip_unless_queue_is_written() -> None:
    """A slow nightly run does not pile up behind itself by default."""
    assert parse_schedule("0 0 * * *").overlap is Overlap.SKIP
    assert parse_schedule("0 0 * * *", overlap="queue").overlap is Overlap.QUEUE
    with pytest.raises(UserError, match="'wait' is not known"):
        parse_schedule("0 0 * * *", overlap="wait")


@given(
    st.sampled_from(["30 2 * * *", "*/7 * * * *", "0 */3 * * *", "15 1-3 * * 0", "0 0 29 2 *", "59 23 L * *"]),
    st.sampled_from(["UTC", BERLIN, "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.floats(0, 4e9) | st.sampled_from(NIGHTS).flatmap(lambda night: st.floats(night - 9000, night + 9000)),
)
def test_the_next_time_is_later_and_nothing_lies_between(line: str, zone: str, after: float) -> None:
    """Wherever and whenever one asks: time moves on, and asking a second before the answer gives it again."""
    schedule = parse_schedule(line, zone)
    found = next_after(schedule, after)
    assert found is not None
    assert found > after
    assert next_after(schedule, max(after, found - 1)) == found
