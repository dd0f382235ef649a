"""The waits between tries."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.backoff import delay_s, step_after


def test_the_waits_are_15_s_30_s_1_2_5_10_min_then_10_min() -> None:
    """No machine all night: after the first half hour somebody asks the provider every ten minutes."""
    assert [delay_s(step, 0.5) for step in range(8)] == [15, 30, 60, 120, 300, 600, 600, 600]


@given(st.integers(0, 1000), st.floats(0, 1, exclude_max=True))
def test_jitter_moves_a_wait_by_at_most_a_tenth(step: int, jitter: float) -> None:
    """A hundred jobs lost their machines together; they do not all come back in the same second."""
    assert 0.9 * delay_s(step, 0.5) <= delay_s(step, jitter) <= 1.1 * delay_s(step, 0.5)


def test_jitter_spreads_over_the_whole_range() -> None:
    """Both ends of the tenth are used."""
    assert round(delay_s(0, 0.0), 6) == 13.5
    assert 16.4 < delay_s(0, 0.999) < 16.5


def test_it_is_reset_once_a_job_has_run_for_ten_minutes() -> None:
    """A run that lived for an hour and was then preempted is no sign of scarcity; one of a minute may be."""
    assert step_after(4, 599.9) == 4
    assert step_after(4, 600.0) == 0
