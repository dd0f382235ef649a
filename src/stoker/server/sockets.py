"""The sockets of workers that are connected here: who is cancelled hears of it at once.

A cancellation on another replica comes as a hint, and every few seconds anyway: then it is looked up what the
connected workers hold and should stop. Their heartbeats ask for the same.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from stoker.core.graph import Held
from stoker.core.ids import WorkerId
from stoker.engine.loop import Counts
from stoker.store.database import Database

PERIOD_S: Final = 5.0
MOST_UNSENT: Final = 1_000

UNWANTED: Final = """
SELECT worker_id, id, attempt FROM task WHERE worker_id = ANY($1::uuid[]) AND state = 'pending_cancellation'
"""


class Socket:
    """One connected worker; what it has been told to stop, it is not told again on this connection."""

    def __init__(self) -> None:
        self.unsent: asyncio.Queue[list[Held]] = asyncio.Queue(MOST_UNSENT)
        self._told: set[Held] = set()

    def tell(self, held: Sequence[Held]) -> None:
        fresh = [one for one in held if one not in self._told]
        if fresh and not self.unsent.full():
            self._told.update(fresh)
            self.unsent.put_nowait(fresh)

    def keep(self, held: Sequence[Held]) -> None:
        """What it holds now: the rest needs no remembering."""
        self._told &= set(held)


class Sockets:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._sockets: dict[WorkerId, Socket] = {}
        self.tell_others: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._sockets)

    @contextmanager
    def open(self, worker: WorkerId) -> Iterator[Socket]:
        """A worker that connects again replaces its older connection."""
        socket = self._sockets[worker] = Socket()
        try:
            yield socket
        finally:
            if self._sockets.get(worker) is socket:
                del self._sockets[worker]

    def cancelled(self, told: Sequence[tuple[WorkerId, Held]]) -> None:
        elsewhere = False
        mine: dict[WorkerId, list[Held]] = {}
        for worker, held in told:
            if worker in self._sockets:
                mine.setdefault(worker, []).append(held)
            else:
                elsewhere = True
        for worker, helds in mine.items():
            self._sockets[worker].tell(helds)
        if elsewhere:
            self.tell_others()

    async def once(self) -> Counts:
        if not self._sockets:
            return Counts()
        async with self._database.connection() as connection:
            rows = await connection.fetch(UNWANTED, list(self._sockets))
        for row in rows:
            if socket := self._sockets.get(row["worker_id"]):
                socket.tell([Held(row["id"], row["attempt"])])
        return Counts(len(rows))
