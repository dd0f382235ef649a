"""Orders of a task that is gone: the highest fence that was seen for it, so that a late order does not revive it."""

import threading
from uuid import UUID

from stoker.core.errors import Conflict
from stoker.shim.ledger import Ledger
from stoker.shim.limits import REMOVED_KEPT


class Removed:
    """The last ones that were removed, on disk."""

    def __init__(self, ledger: Ledger, kept: int = REMOVED_KEPT) -> None:
        self._ledger, self._kept = ledger, kept
        self._turn = threading.Lock()
        self._fences: dict[UUID, int] = {}
        self._lines = 0
        for id, fence in ledger.read():
            self._note(UUID(id), int(fence))

    def fence(self, id: UUID) -> int | None:
        return self._fences.get(id)

    def add(self, id: UUID, fence: int) -> None:
        """Blocks until it is on disk; from any thread."""
        with self._turn:
            fence = max(fence, self._fences.get(id, fence))
            self._ledger.append([(id, fence)])
            self._note(id, fence)
            if self._lines > 2 * self._kept:
                self._ledger.rewrite(list(self._fences.items()))
                self._lines = len(self._fences)

    def _note(self, id: UUID, fence: int) -> None:
        self._fences.pop(id, None)
        self._fences[id] = fence
        self._lines += 1
        while len(self._fences) > self._kept:
            del self._fences[next(iter(self._fences))]


def check(id: UUID, fence: int, seen: int) -> None:
    if fence < seen:
        raise Conflict(
            f"An order for task {id} with fence {seen} was here before this one with {fence}.",
            hint="Whoever gave the later order decides now.",
            code="fenced",
        )
