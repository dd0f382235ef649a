"""The loop that sums up what the swarm's commits counted, so that reading stays quick."""

from typing import Final

from stoker.engine.clock import Clock
from stoker.engine.loop import Counts
from stoker.store import tally
from stoker.store.database import Database

PERIOD_S: Final = 5.0


class Tallies:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database, self._clock = database, clock

    async def once(self) -> Counts:
        async with self._database.connection() as connection:
            if not await connection.fetchval("SELECT EXISTS (SELECT FROM task_delta)"):
                return Counts()
        async with self._database.transaction() as tx:
            return Counts(await tally.fold(tx, self._clock.now()))
