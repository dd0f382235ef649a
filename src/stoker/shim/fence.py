"""Orders of a task that is gone: the highest fence that was seen for it, so that a late order does not revive it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from stoker.core.errors import Conflict
from stoker.shim.ledger import Ledger
from stoker.shim.limits import REMOVED_KEPT


class Removed:
    """The last ones that were removed, on disk. Those who remove at the same time share one sync."""

    def __init__(self, ledger: Ledger, in_thread: Callable[..., Awaitable[Any]], kept: int = REMOVED_KEPT) -> None:
        self._ledger, self._in_thread, self._kept = ledger, in_thread, kept
        self._fences: dict[UUID, int] = {}
        self._lines = 0
        for id, fence in ledger.read():
            self._note(UUID(id), int(fence))
        self._waiting: dict[UUID, int] = {}
        self._turn = asyncio.Lock()

    def fence(self, id: UUID) -> int | None:
        return self._fences.get(id)

    async def add(self, id: UUID, fence: int) -> None:
        """Returns when it is on disk."""
        self._waiting[id] = max(fence, self._waiting.get(id, fence), self._fences.get(id, fence))
        async with self._turn:
            if id not in self._waiting:
                # The one before us in the queue has taken ours along.
                return
            taken, self._waiting = self._waiting, {}
            await self._in_thread(self._ledger.append, list(taken.items()))
            for each, its_fence in taken.items():
                self._note(each, its_fence)
            if self._lines > 2 * self._kept:
                await self._in_thread(self._ledger.rewrite, list(self._fences.items()))
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
