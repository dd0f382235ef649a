"""What workers are, remembered: a row of a worker does not change, and every claim needs it."""

import json
from typing import Final, NamedTuple

from stoker.core.fit import Room
from stoker.core.ids import WorkerId
from stoker.core.quantity import whole
from stoker.store import worker as store
from stoker.store.database import Database

MOST_REMEMBERED: Final = 20_000


class Entry(NamedTuple):
    total: Room
    group: str | None


class Rosters:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[WorkerId, Entry] = {}

    async def of(self, worker: WorkerId) -> Entry:
        if (known := self._known.get(worker)) is not None:
            return known
        async with self._database.connection() as connection:
            row = await store.get(connection, worker)
        if row is None:
            raise store.unknown(worker)
        amounts = {name: whole(amount) for name, amount in json.loads(row["total"]).items()}
        if len(self._known) >= MOST_REMEMBERED:
            self._known.clear()
        entry = self._known[worker] = Entry(Room(amounts, tuple(map(whole, row["gpus"]))), row["group_name"])
        return entry
