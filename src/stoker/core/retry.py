"""May a job that ended be tried again? Decided once, when it ends, and kept with it."""

from dataclasses import dataclass
from enum import StrEnum

from stoker.core.reason import CONSEQUENCES, LIMITS, JobReason, RetryEvent

PROGRAM_EXITED = frozenset({JobReason.CONTAINER_EXITED_WITH_ERROR, JobReason.OUT_OF_MEMORY})
HEALTHY_AFTER_S = 600.0
"""A job that ran this long was healthy: the backoff and the retry duration start anew."""


class Fate(StrEnum):
    """How a job counts for its run. Everything but OPEN is decided when the job begins to end."""

    OPEN = "open"
    DONE = "done"
    RETRY = "retry"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    LIMIT = "limit"
    GONE = "gone"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Retry:
    """The user's `retry`. `max_attempts` counts tries: 1 means no second one."""

    on_events: frozenset[RetryEvent] = frozenset()
    duration_s: float | None = None
    max_attempts: int | None = None
    on_exit_codes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Budget:
    """What a job has used of its retries. It travels from submission to submission, never from a restart."""

    tries: int = 1
    failing_since: float | None = None
    streak: int = 0
    """Failures in a row, also those that cost no try: the second one in a row waits before it is tried again."""

    def ran(self, seconds: float) -> "Budget":
        """After a healthy stretch, the next failure is the first of a new series."""
        return Budget(self.tries) if seconds >= HEALTHY_AFTER_S else self

    def charged(self, now: float) -> "Budget":
        since = now if self.failing_since is None else self.failing_since
        return Budget(self.tries + 1, since, self.streak + 1)

    def free(self) -> "Budget":
        return Budget(self.tries, self.failing_since, self.streak + 1)


FIRST_TRY = Budget()


@dataclass(frozen=True, slots=True)
class Verdict:
    fate: Fate
    budget: Budget
    """What the next submission starts with."""


def judge(retry: Retry | None, reason: JobReason, exit_code: int | None, budget: Budget, now: float) -> Verdict:
    if reason is JobReason.DONE_BY_RUNNER:
        return Verdict(Fate.DONE, budget)
    if reason is JobReason.SCALED_DOWN:
        return Verdict(Fate.GONE, budget)
    if reason in LIMITS:
        return Verdict(Fate.LIMIT, budget)
    if retry is None:
        return Verdict(Fate.FAILED, budget)
    if reason in PROGRAM_EXITED and exit_code in retry.on_exit_codes:
        return Verdict(Fate.RETRY, budget.free())
    if CONSEQUENCES[reason].retry not in retry.on_events:
        return Verdict(Fate.FAILED, budget)
    if retry.max_attempts is not None and budget.tries >= retry.max_attempts:
        return Verdict(Fate.EXHAUSTED, budget)
    since = now if budget.failing_since is None else budget.failing_since
    if retry.duration_s is not None and now - since > retry.duration_s:
        return Verdict(Fate.EXHAUSTED, budget)
    return Verdict(Fate.RETRY, budget.charged(now))
