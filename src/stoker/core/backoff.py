"""How long to wait before the next try: one list for runs and managed jobs."""

from stoker.core.retry import HEALTHY_AFTER_S

DELAYS_S = (15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
SPREAD = 0.1
"""Tries that failed together come back up to this share earlier or later, so not together again."""


def delay_s(step: int, jitter: float) -> float:
    """The wait after `step` earlier waits in a row; `jitter` in [0, 1), of which 0.5 changes nothing."""
    return DELAYS_S[min(step, len(DELAYS_S) - 1)] * (1 + SPREAD * (2 * jitter - 1))


def step_after(step: int, ran_s: float) -> int:
    """The step that stands after a run of `ran_s`: a long one has proven that waiting is over."""
    return 0 if ran_s >= HEALTHY_AFTER_S else step
