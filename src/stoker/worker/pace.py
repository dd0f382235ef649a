"""How fast tasks come and go: how many are claimed ahead because of it, and when a report may wait for more ends."""

from typing import Final

from stoker.worker.limits import GATHER_S, HORIZON_S, LONG_S

_WEIGHT: Final = 0.05
"""Of the latest in what is recent."""
_SHORTEST_S: Final = 0.0005


class Pace:
    def __init__(self) -> None:
        self._run_s = LONG_S
        """How long tasks took recently, from start to end."""
        self._seen = 0
        self._answer_s = 0.0
        """How long the server took to answer a report."""

    def ended(self, ran_s: float) -> None:
        # The first ones count for more: a worker must not be slow to learn that tasks are short.
        self._seen += 1
        self._run_s += max(_WEIGHT, 1 / self._seen) * (ran_s - self._run_s)

    def answered(self, answer_s: float) -> None:
        self._answer_s += 0.1 * (answer_s - self._answer_s)

    def ahead(self, running: int) -> int:
        """How many tasks should wait here, so that no place is empty before more can come; none where they are long."""
        if self._run_s >= LONG_S:
            return 0
        return int((HORIZON_S + 2 * self._answer_s) * running / max(self._run_s, _SHORTEST_S))

    def leisure_s(self, running: int, queued: int) -> float:
        """How long the next report may wait, so that its answer is here before the queue is empty."""
        if not running or not queued:
            return 0.0
        lasts_s = queued * self._run_s / running
        return max(0.0, min(GATHER_S, lasts_s - HORIZON_S / 2 - self._answer_s))
