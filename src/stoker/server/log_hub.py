"""Wakes those who follow a log when something was appended to it, and those who watch a run when it changed.

A bell is what one waiting request holds. It may hang in several places at once; ringing it only says *look again*.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID


class Bell:
    """One waiting request; what is said while it does not listen is not lost."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def heard(self, patience_s: float) -> bool:
        """Whether it rang before the patience was over; it can ring again afterwards."""
        try:
            async with asyncio.timeout(patience_s):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True


class Hub:
    """Bells by what they wait for."""

    def __init__(self) -> None:
        self._bells: dict[UUID, set[Bell]] = {}

    def __len__(self) -> int:
        return len(self._bells)

    def notify(self, id: UUID) -> None:
        for bell in self._bells.get(id, ()):
            bell.ring()

    def notify_all(self) -> None:
        for bells in self._bells.values():
            for bell in bells:
                bell.ring()

    @contextmanager
    def hung(self, id: UUID, bell: Bell) -> Iterator[None]:
        bells = self._bells.setdefault(id, set())
        bells.add(bell)
        try:
            yield
        finally:
            bells.discard(bell)
            if not bells:
                del self._bells[id]

    def waits_for(self, id: UUID) -> bool:
        return id in self._bells

    def ids(self) -> list[UUID]:
        return list(self._bells)


class LogHub(Hub):
    """By job id. Whoever appends to a log calls `notify(job_id)` afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted: Callable[[UUID], None] = lambda id: None
        """Called when somebody begins to follow a log."""

    @contextmanager
    def hung(self, id: UUID, bell: Bell) -> Iterator[None]:
        with super().hung(id, bell):
            self.wanted(id)
            yield

    async def wait(self, job_id: UUID, patience_s: float) -> bool:
        """For those who wait for nothing else."""
        bell = Bell()
        with self.hung(job_id, bell):
            return await bell.heard(patience_s)
