"""The engine's door to the swarm: each act is one transaction over the set-based SQL of `store/`.

Tasks do not go through `commit`: a million of them change by sets (architecture §3). Two transactions may meet
head on (`store/continuation.py` says when); PostgreSQL ends one of them, and that one is said again here.

A lease is over only when somebody was there to renew it. What the other replicas did nobody can know afterwards (they
may have died one after the other, each after a moment), so a replica takes tasks away only when it was there itself
for a whole lease: one that comes back, was frozen or had no database gives each worker a full new period.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeVar
from uuid import UUID

import asyncpg
import structlog

from stoker.core.errors import Unavailable
from stoker.core.graph import Edge, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.engine.clock import Clock
from stoker.engine.loop import Counts
from stoker.engine.presence import Presence
from stoker.store import claim, continuation, journal, task
from stoker.store.bundle import Bundle
from stoker.store.claim import Answer, Beat, End, Expired, Work
from stoker.store.database import Connection, Database
from stoker.store.task import Cancelled, Draft

LEASE_S: Final = 60.0
AWAY_AFTER_S: Final = 15.0
"""No pass of the loop for so long: workers may have found nobody here."""
MOST_TRIES: Final = 5
"""Of a transaction that PostgreSQL ended in favour of another."""

T = TypeVar("T")
log = structlog.get_logger()


class Swarm:
    """Its loop is `expire_once`; the other acts are requests of users and workers.

    Each raises what stopped it, and then nothing of it happened, except after `ConnectionLost` with
    `outcome_unknown`. A worker may say everything again: its news names the attempt, its claims have numbers.
    """

    def __init__(
        self, database: Database, clock: Clock, lease_s: float = LEASE_S, away_after_s: float = AWAY_AFTER_S
    ) -> None:
        self._database, self._clock, self.lease_s = database, clock, lease_s
        self._presence = Presence(away_after_s)

    async def create(self, drafts: Collection[Draft], edges: Collection[Edge] = (), *, by: str = "") -> int:
        """Stores a whole graph or nothing. Returns how many tasks can be claimed because of it."""

        async def act(tx: Connection, now: float) -> int:
            available = await task.create(tx, drafts, edges, now)
            for first in list(drafts)[:1]:
                note = f"{len(drafts)} tasks, {len(edges)} continuations"
                await _journal(tx, first.id, first.project, "Created", first.state.value, note, by, now)
            return available

        return await self._transact(act)

    async def make_available(self, ids: Collection[TaskId]) -> int:
        return await self._transact(lambda tx, now: task.make_available(tx, ids, now))

    async def cancel(self, ids: Collection[TaskId], *, by: str = "") -> Cancelled:
        """Accepted at once in any state; the caller tells the workers in `told`, whose heartbeats tell them too."""

        async def act(tx: Connection, now: float) -> Cancelled:
            done = await task.cancel(tx, ids, now)
            for first in list(ids)[:1] if done.cancelled or done.told else ():
                note = f"{len(ids)} asked for, {done.cancelled} cancelled, {len(done.told)} still running"
                await _journal(tx, first, first, "CancelAsked", "cancelled", note, by, now)
            return done

        return await self._transact(act)

    async def add_continuations(self, edges: Collection[Edge]) -> None:
        await self._transact(lambda tx, now: continuation.add_continuations(tx, edges))

    async def remove_continuations(self, edges: Collection[Edge]) -> int:
        """Returns how many tasks can be claimed because of it."""
        return await self._transact(lambda tx, now: continuation.remove_continuations(tx, edges, now))

    async def register(self, worker: WorkerId, project: ProjectId, name: str) -> None:
        await self._transact(lambda tx, now: claim.register(tx, worker, project, name, self.lease_s, now))

    async def claim(self, worker: WorkerId, n: int, number: int) -> list[Work]:
        """`number` is the worker's own, one higher each time; see `store/claim.py`."""
        return await self._transact(lambda tx, now: claim.claim(tx, worker, n, self.lease_s, now, number))

    async def report(self, worker: WorkerId, ends: Collection[End]) -> Answer:
        return await self._transact(lambda tx, now: claim.report(tx, worker, ends, now))

    async def give_back(self, worker: WorkerId, unstarted: Collection[Held]) -> Answer:
        return await self._transact(lambda tx, now: claim.give_back(tx, worker, unstarted, now))

    async def heartbeat(self, worker: WorkerId, listed: Collection[Held], number: int) -> Beat:
        return await self._transact(lambda tx, now: claim.heartbeat(tx, worker, listed, self.lease_s, now, number))

    async def expire_once(self) -> Counts:
        """Workers whose lease is over lose what they hold, and it moves on."""
        async with self._database.connection() as connection:
            end = await claim.next_lease_end(connection)
        now = self._clock.now()
        self._presence.seen(now)
        if end is None:
            return Counts()
        if (over_at := max(end, self._presence.since + self.lease_s)) > now:
            return Counts(again_after_s=over_at - now)
        lost = await self._transact(self._expire)
        if lost.workers:
            log.info("workers were lost", workers=lost.workers, available=lost.available)
        return Counts(lost.workers, 0.0 if lost.workers == claim.WORKERS_EXPIRED_AT_ONCE else None)

    async def _expire(self, tx: Connection, now: float) -> Expired:
        if self._presence.away(now):
            # Frozen, or without a connection, since it looked.
            return Expired(0, 0)
        return await claim.expire(tx, now)

    async def _transact(self, act: Callable[[Connection, float], Awaitable[T]]) -> T:
        for tries in range(1, MOST_TRIES + 1):
            try:
                async with self._database.transaction() as tx:
                    return await act(tx, self._clock.now())
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError) as error:
                log.info("a transaction of the swarm gave way to another", tries=tries, error=str(error))
            await asyncio.sleep(0.01 * tries)
        raise Unavailable(f"Others changed the same tasks {MOST_TRIES} times in a row.", code="busy")


async def _journal(
    tx: Connection, id: TaskId, family: UUID, event: str, target: str, note: str, by: str, now: float
) -> None:
    """One entry a bulk act; what happens to a single task is told by its executions."""
    bundle = Bundle()
    journal.append(bundle, [journal.Entry("task", id, family, event, None, target, note, by, family)], now)
    await bundle.write(tx)
