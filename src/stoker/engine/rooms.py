"""The unfinished instances as they were read last: of those that did not change since, only the version is read."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from stoker.core.ids import InstanceId
from stoker.store import instance as instance_store
from stoker.store.database import Connection
from stoker.store.instance import Standing, Unfinished


class _Known(NamedTuple):
    standing: Standing
    unfinished: Unfinished


class Rooms:
    """`generation` tells one server of the database from another, whose versions say nothing of what is known here."""

    def __init__(self, generation: Callable[[], int]) -> None:
        self._generation, self._of = generation, -1
        self._known: dict[InstanceId, _Known] = {}

    async def look(self, tx: Connection) -> list[Unfinished]:
        if self._of != self._generation():
            self._known, self._of = {}, self._generation()
        standing = await instance_store.standing(tx)
        changed = [one.id for one in standing if _differs(self._known, one)]
        fresh = await instance_store.some(tx, changed) if changed else {}
        known: dict[InstanceId, _Known] = {}
        for one in standing:
            if (found := fresh.get(one.id)) is not None:
                known[one.id] = _Known(one, Unfinished(found, one.project_id))
            elif one.id in self._known and one.id not in changed:
                known[one.id] = self._known[one.id]
        self._known = known
        return [one.unfinished for one in known.values()]


def _differs(known: Mapping[InstanceId, _Known], one: Standing) -> bool:
    return one.id not in known or known[one.id].standing != one
