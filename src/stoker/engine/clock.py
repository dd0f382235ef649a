"""The time of the cluster: the database's clock, so that replicas agree and no host's clock matters."""

import time
from typing import Protocol

from stoker.store import replica
from stoker.store.database import Database


class Clock(Protocol):
    def now(self) -> float: ...


class DatabaseClock:
    """Counts on the host's monotonic clock from the moment the database told its time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offset = 0.0

    def now(self) -> float:
        return time.monotonic() + self._offset

    async def follow(self) -> None:
        """Ask again; half of the round trip is the error."""
        async with self._database.connection() as connection:
            before = time.monotonic()
            moment = await replica.clock(connection)
            self._offset = moment - (before + time.monotonic()) / 2
