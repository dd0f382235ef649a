"""How far the journal is settled: up to which number everything that will ever be there can be seen.

Numbers are drawn before it is known in which order their transactions commit, so a reader that takes the highest number
it sees for its place loses what commits later with a lower one. Numbers have no gaps except those of transactions that
are still under way, or that failed. So the settled end goes on along the numbers without a gap; and where there
is one, a *mark* is set: the highest number that is seen, and a transaction number that is drawn behind it. Whoever drew
a lower number of the journal has a lower transaction number (`APPEND` sees to that), so as soon as no such transaction
is under way, everything up to the mark is settled, and what is missing will never come.

The order of numbers is also the order in which things happened to one run or instance: they are drawn under its lock.
"""

import asyncio
from typing import NamedTuple

from stoker.store.database import Connection, Database

AT_ONCE = 5_000
"""How many numbers are looked at; whoever is further behind goes by a mark."""

SEEN = """
SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint AS oldest,
       ARRAY(SELECT seq FROM journal WHERE seq > $1 ORDER BY seq LIMIT $2) AS numbers
"""
"""`oldest`: every transaction with a lower number has ended."""

MARK = "SELECT coalesce(max(seq), 0) AS seq, pg_current_xact_id()::text::bigint AS behind FROM journal"


class _Mark(NamedTuple):
    seq: int
    behind: int


class Settled(NamedTuple):
    end: int
    """Nothing with this number or a lower one will appear any more."""
    all: bool
    """Whether nothing higher was seen either."""


class Tail:
    """Of one replica; however many ask at the same time, it looks once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._end = 0
        self._mark: _Mark | None = None
        self._running: asyncio.Task[Settled] | None = None
        self._queued: asyncio.Task[Settled] | None = None

    async def look(self) -> Settled:
        """As it is now: a look that began before somebody asked is not enough."""
        if self._queued is None:
            self._queued = asyncio.get_running_loop().create_task(self._next(self._running))
        return await asyncio.shield(self._queued)

    async def _next(self, before: "asyncio.Task[Settled] | None") -> Settled:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._queued = self._queued, None
        async with self._database.connection() as connection:
            settled = await self._look(connection)
            if not settled.all and self._mark is None:
                self._mark = _Mark(*(await connection.fetch(MARK))[0])
                # Where nobody is writing it is settled at once.
                settled = await self._look(connection)
            return settled

    async def _look(self, connection: Connection) -> Settled:
        ((oldest, numbers),) = await connection.fetch(SEEN, self._end, AT_ONCE)
        if self._mark is not None and oldest >= self._mark.behind:
            self._end, self._mark = max(self._end, self._mark.seq), None
        for seq in numbers:
            if seq == self._end + 1:
                self._end = seq
        return Settled(self._end, not numbers or (len(numbers) < AT_ONCE and numbers[-1] <= self._end))
