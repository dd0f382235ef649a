"""Which kinds of swarm tasks may have something to hand out, as this replica remembers it.

A kind is hot until a claim finds nothing of it; whatever makes tasks available here says of which kinds they are. What
other replicas did is looked up when they say so, and now and then, since hints may be lost.
"""

from collections.abc import Collection

from stoker.core.ids import ProjectId
from stoker.store import task_kind
from stoker.store.database import Connection
from stoker.store.task_kind import Stored

MOST_REMEMBERED = 50_000


class Kinds:
    def __init__(self) -> None:
        self._stored: dict[int, Stored] = {}
        self._hot: dict[ProjectId, set[int]] = {}
        self._new: set[int] = set()
        """Hot, and not read yet."""

    def open(self, kinds: Collection[int]) -> None:
        self._new.update(kinds)

    def close(self, project: ProjectId, kinds: Collection[int]) -> None:
        if project in self._hot:
            self._hot[project] -= set(kinds) - self._new

    def forget(self) -> None:
        """Somebody else may have made tasks available: each project is looked at anew."""
        self._hot.clear()

    async def waiting(self, conn: Connection, project: ProjectId) -> dict[int, Stored]:
        """The kinds of this project of which there may be something to claim."""
        if len(self._stored) > MOST_REMEMBERED:
            self._stored.clear()
            self._hot.clear()
        if project not in self._hot:
            self._new |= await task_kind.waiting_kinds(conn, project)
            self._hot[project] = set()
        if self._new:
            await self._read(conn)
        return {id: self._stored[id] for id in self._hot.get(project, ())}

    async def _read(self, conn: Connection) -> None:
        # While they are read others may be opened, which must not be forgotten.
        new = set(self._new)
        if missing := new - self._stored.keys():
            self._stored |= await task_kind.read(conn, missing)
        for id in new & self._stored.keys():
            if (stored := self._stored[id]).project in self._hot:
                self._hot[stored.project].add(id)
        self._new -= new
