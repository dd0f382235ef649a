"""Lengths of time are read as people write them, and written back the same."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.limits import MOST_DURATION_S
from stoker.wire.duration import format_duration, parse_duration


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        (90, 90),
        (0.5, 0.5),
        ("90", 90),
        ("90s", 90),
        ("15m", 900),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("2D", 172_800),
        ("1w", 604_800),
        ("off", None),
        ("OFF", None),
    ],
)
def test_a_length_of_time_is_read(written: object, seconds: float | None) -> None:
    assert parse_duration(written) == seconds


@pytest.mark.parametrize(
    "written", ["", "h", "1y", "1h30", "-1", "-1s", -1, "1e5", True, False, [], "nan", 1e12, "99999d"]
)
def test_what_is_none_is_refused(written: object) -> None:
    with pytest.raises(ValueError, match="it is"):
        parse_duration(written)


@settings(deadline=None)
@given(st.integers(0, int(MOST_DURATION_S * 1000)).map(lambda ms: ms / 1000))
def test_it_is_read_back_as_the_same(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, abs=1e-6)


def test_it_is_written_shortly() -> None:
    assert [format_duration(s) for s in (0, 10, 90, 5400, 90_061, 0.25, None)] == [
        "0s", "10s", "1m30s", "1h30m", "1d1h1m1s", "0.25s", "off",
    ]  # fmt: skip
