"""What a planner leaves alone for a while because its change failed: longer each time, so that nothing spins.

A plan without it goes on: one record that is broken must not hold up the others, nor take room or slots from them.
"""

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

import structlog

from stoker.core.errors import Broken
from stoker.core.limits import LONGEST_DELAY_S
from stoker.engine.change import Change
from stoker.engine.clock import Clock
from stoker.engine.draft import Answer

FIRST_S = 0.25
QUICK_S = 0.02
"""For what failed by nobody's fault."""

log = structlog.get_logger()


class Failures(NamedTuple):
    """What failed in one pass, and how much of it by our own fault."""

    failed: int = 0
    bugs: int = 0
    error: str = ""


class _Waiting(NamedTuple):
    times: int
    until: float


class Aside:
    """Records by id. Kept in memory: after a restart each of them is tried once more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: dict[UUID, _Waiting] = {}

    def ids(self) -> frozenset[UUID]:
        """Those whose turn has not come again."""
        now = self._clock.now()
        return frozenset(id for id, one in self._waiting.items() if one.until > now)

    def again_after_s(self) -> float | None:
        """When the turn of the next one comes; None when nothing is aside."""
        now = self._clock.now()
        return min((one.until - now for one in self._waiting.values() if one.until > now), default=None)

    def learn(self, results: Iterable[tuple[Change, Answer | None]]) -> Failures:
        """From the answers of a pass. What another commit held has none and has not failed."""
        now, failures = self._clock.now(), Failures()
        # Whatever nobody spoke of since its turn came has moved on by itself.
        self._waiting = {id: one for id, one in self._waiting.items() if one.until + LONGEST_DELAY_S > now}
        for change, answer in results:
            if answer is None:
                continue
            if answer.error is None and any(answer.applied):
                for fact in change.facts:
                    self._waiting.pop(fact.id, None)
            else:
                failures = self._failed(change, answer, failures, now)
        return failures

    def _failed(self, change: Change, answer: Answer, so_far: Failures, now: float) -> Failures:
        times = 1 + max((self._waiting[fact.id].times for fact in change.facts if fact.id in self._waiting), default=0)
        bug = answer.error if isinstance(answer.error, Broken) else None
        delay_s = min((FIRST_S if bug else QUICK_S) * 2 ** min(times - 1, 20), LONGEST_DELAY_S)
        if bug is None and times == 1:
            # Its record moved between the plan and the commit: the next plan knows, and must not pass it over.
            delay_s = 0.0
        self._waiting |= {fact.id: _Waiting(times, now + delay_s) for fact in change.facts}
        if bug is None:
            return so_far._replace(failed=so_far.failed + 1)
        if times == 1:
            _show(change, bug)
        return Failures(so_far.failed + 1, so_far.bugs + 1, str(bug))


def _show(change: Change, error: Broken) -> None:
    for fact in change.facts[:1]:
        log.error(
            "a planned change broke; its record is left alone for a while", kind=fact.kind, record=str(fact.id),
            said=type(fact.event).__name__, error=str(error), exc_info=error.__cause__,
        )  # fmt: skip
