"""Orders of a task that is gone: the highest fence that was seen for it, so that a late order does not revive it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from stoker.core.errors import Conflict, StokerError
from stoker.shim.ledger import Ledger
from stoker.shim.limits import REMOVED_KEPT


@dataclass
class _Batch:
    fences: dict[UUID, int] = field(default_factory=dict)
    written: bool = False
    error: OSError | StokerError | None = None


class Removed:
    """The last ones that were removed, on disk. Those who remove at the same time share one sync."""

    def __init__(self, ledger: Ledger, in_thread: Callable[..., Awaitable[Any]], kept: int = REMOVED_KEPT) -> None:
        self._ledger, self._in_thread, self._kept = ledger, in_thread, kept
        self._fences: dict[UUID, int] = {}
        self._lines = 0
        for id, fence in ledger.read():
            self._note(UUID(id), int(fence))
        self._open = _Batch()
        self._turn = asyncio.Lock()

    def fence(self, id: UUID) -> int | None:
        return self._fences.get(id)

    async def add(self, id: UUID, fence: int) -> None:
        """Returns when it is on disk."""
        batch = self._open
        batch.fences[id] = max(fence, batch.fences.get(id, fence), self._fences.get(id, fence))
        async with self._turn:
            # Whoever is first in the queue has taken the others along.
            if not batch.written:
                self._open, batch.written = _Batch(), True
                try:
                    await self._write(batch.fences)
                except (OSError, StokerError) as error:
                    batch.error = error
            if batch.error is not None:
                raise batch.error

    async def _write(self, fences: dict[UUID, int]) -> None:
        await self._in_thread(self._ledger.append, list(fences.items()))
        for id, fence in fences.items():
            self._note(id, fence)
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
