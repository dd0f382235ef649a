"""Times as people type and read them."""

import pytest

from stoker.cli import moment
from stoker.core.errors import UserError


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        *[
            (0, "0s"),
            (0.0423, "42ms"),
            (0.0999, "0.1s"),
            (0.42, "0.4s"),
            (9.96, "10s"),
            (42.4, "42s"),
            (60, "1m"),
            (185, "3m 5s"),
            (7800, "2h 10m"),
        ],
        *[(86400 * 4 + 3 * 3600, "4d 3h"), (3600, "1h"), (-1, "0s"), (59.9, "1m")],
    ],
)
def test_spans_are_short(seconds: float, said: str) -> None:
    assert moment.span(seconds) == said


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "now"), (5, "5s ago"), (125, "2m ago"), (7300, "2h ago"), (900_000, "10d ago"), (-5, "now")],
)
def test_how_long_ago(seconds: float, said: str) -> None:
    then = "2026-05-01T12:00:00Z"
    assert moment.ago(then, moment.parse(then) + seconds) == said


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800)]
)
def test_lengths_that_people_type(text: str, seconds: float) -> None:
    assert moment.seconds_of(text) == seconds


def test_since_takes_a_length_or_a_moment() -> None:
    assert moment.since("10m", 1000.0) == 400.0
    assert moment.since("2026-05-01T12:00:00Z", 0.0) == moment.parse("2026-05-01T12:00:00Z")


@pytest.mark.parametrize("text", ["", "soon", "10 parsecs", "2026-13-01"])
def test_what_is_neither_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="For example"):
        moment.since(text, 0.0)


@pytest.mark.usefixtures("berlin")
def test_a_line_of_a_log_has_the_readers_time_and_its_offset_and_for_programs_it_is_utc() -> None:
    summer, winter = 1_777_636_800_000_001, 1_767_268_800_999_999
    assert moment.stamp(summer) == "2026-05-01T14:00:00.000001+02:00"
    assert moment.stamp(winter) == "2026-01-01T13:00:00.999999+01:00"
    assert moment.utc(summer) == "2026-05-01T12:00:00.000001Z"
    assert len(moment.stamp(0)) == len(moment.stamp(winter))
