"""Fulfils wishes: takes errands from the outbox, has them performed, and commits what came of it.

An errand starts as soon as its commit is on disk. It is concluded by the commit of the change its performer
returns, so a crash in between performs it again: performers are safe to run twice. An errand that fails is
postponed with a growing delay and its error is kept where people can see it; before it is tried again, and
when it was somebody else's, its wish is checked against the record.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

import structlog

from stoker.core.errors import NOT_YET, Broken, Conflict, StokerError, Unavailable
from stoker.core.limits import LONGEST_DELAY_S, MOST_ERRANDS, PAGE, PERFORMANCE_S
from stoker.core.machine import Effect
from stoker.engine.change import Change
from stoker.engine.clock import Clock
from stoker.engine.commit import Committer
from stoker.engine.effect import decode
from stoker.engine.loop import Counts
from stoker.store import outbox
from stoker.store.database import Database
from stoker.store.outbox import Errand

FIRST_DELAY_S = 0.25
LAST_WORD_S = 1.0
"""How long a cancelled errand may take to end."""

log = structlog.get_logger()

Performer = Callable[[Errand, Any], Awaitable[Change]]
Performers = Mapping[type[Effect], Performer]


class Errands:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        committer: Committer,
        performers: Performers,
        postponed: Callable[[], None],
    ) -> None:
        self._database, self._clock, self._committer = database, clock, committer
        self._performers, self._postponed = performers, postponed
        self._flying: dict[UUID, asyncio.Task[None]] = {}
        self._closed = False
        self.bugs = 0
        """Errands that failed by our own fault."""

    @property
    def flying(self) -> int:
        """How many are under way."""
        return len(self._flying)

    def start(self, errands: Iterable[Errand]) -> int:
        """Begin at once. What does not fit stays in the outbox, where `once` finds it; after a stop, somebody else."""
        started = 0
        for errand in () if self._closed else errands:
            if len(self._flying) >= MOST_ERRANDS:
                self._postponed()
                break
            if errand.id not in self._flying:
                task = asyncio.get_running_loop().create_task(self._perform(errand, current=True))
                self._fly(errand, task)
                started += 1
        return started

    async def once(self) -> Counts:
        """Find errands that are due and not under way: postponed ones, adopted ones, those over the limit."""
        owner, now = self._committer.owner, self._clock.now()
        async with self._database.connection() as connection:
            due = await outbox.mine(connection, owner, now, MOST_ERRANDS + PAGE)
            next_due = await outbox.next_due(connection, owner, now)
            # One that flies now and ends before we are done has been concluded or postponed: it is not for this pass.
            due = [errand for errand in due if errand.id not in self._flying]
            current = await outbox.current(connection, due)
        started = 0
        for errand in due:
            if errand.id in self._flying:
                continue
            if len(self._flying) >= MOST_ERRANDS:
                return Counts(started, again_after_s=0.1)
            self._fly(errand, asyncio.get_running_loop().create_task(self._perform(errand, errand.id in current)))
            started += 1
        return Counts(started, None if next_due is None else next_due - now)

    async def close(self, patience_s: float) -> None:
        """For an orderly end: nothing new begins, not even what follows from an errand that ends now."""
        self._closed = True
        await self.settle(patience_s)

    async def settle(self, patience_s: float) -> None:
        """What is under way may end, and is cancelled when it takes too long."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience_s
        while self._flying:
            _, late = await asyncio.wait(self._flying.values(), timeout=max(0.0, until - loop.time()))
            if late:
                for task in late:
                    task.cancel()
                # A performer that does not heed it keeps nobody waiting.
                await asyncio.wait(late, timeout=LAST_WORD_S)
                return

    def _fly(self, errand: Errand, task: "asyncio.Task[None]") -> None:
        self._flying[errand.id] = task
        task.add_done_callback(lambda _: self._flying.pop(errand.id, None))

    async def _perform(self, errand: Errand, current: bool) -> None:
        try:
            if not current:
                await self._committer.commit(Change(done=((errand.id, errand.fence),)))
                return
            effect = decode(errand.effect, errand.payload)
            async with asyncio.timeout(PERFORMANCE_S):
                change = await self._performers[type(effect)](errand, effect)
            await self._conclude(errand, change)
        except Exception as error:  # noqa: BLE001 - an errand that breaks must not take the others with it
            await self._postpone(errand, error)

    async def _conclude(self, errand: Errand, change: Change) -> None:
        try:
            await self._committer.commit(replace(change, done=((errand.id, errand.fence),)))
        except Conflict as error:
            if error.code != "stale":
                raise
            # The record went on while we were performing: the wish is nobody's any more.
            await self._committer.commit(Change(done=((errand.id, errand.fence),)))

    async def _postpone(self, errand: Errand, error: Exception) -> None:
        sentence = str(error) or type(error).__name__
        if isinstance(error, Broken) or not isinstance(error, StokerError | TimeoutError):
            self.bugs += 1
            log.error("errand broke", effect=errand.effect, target=str(errand.target), exc_info=error)
        delay_s = min(FIRST_DELAY_S * 2 ** min(errand.tries, 20), LONGEST_DELAY_S)
        if isinstance(error, Unavailable):
            sentence = "" if error.code == NOT_YET else sentence
            delay_s = max(delay_s, min(error.retry_after_s, LONGEST_DELAY_S))
        try:
            async with self._database.connection() as connection:
                due_at = self._clock.now() + delay_s
                await outbox.postpone(connection, errand.id, self._committer.owner, due_at, sentence)
        except StokerError as lost:
            # Still in the outbox and still due: the next pass of `once` finds it.
            log.warning("errand could not be postponed", effect=errand.effect, error=str(lost))
        self._postponed()
