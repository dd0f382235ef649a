"""Volumes as the placer and their own loop see them, and what is done for them on hosts and at providers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from stoker.core.commitment import Moved
from stoker.core.ids import InstanceId, JobId, VolumeId
from stoker.core.instance_facts import S as I
from stoker.core.limits import PAGE
from stoker.core.tie import FREE, Tie, tie
from stoker.core.volume_facts import Lost, Volume
from stoker.engine.change import Change, of_volume
from stoker.engine.commit import Committer
from stoker.engine.loop import Counts
from stoker.store import volume as store
from stoker.store.database import Connection, Database, Record
from stoker.store.run import policy_of

LOOP = "volumes"


class Sight(NamedTuple):
    """The volumes that waiting runs want, and who has them."""

    volumes: Mapping[VolumeId, Volume]
    users: Mapping[JobId, str]

    def tie(self, wanted: Sequence[VolumeId], names: Mapping[InstanceId, str]) -> Tie:
        return tie([self.volumes.get(id) for id in wanted], names, self.users) if wanted else FREE


async def see(tx: Connection, rows: Iterable[Mapping[str, Any] | Record], *besides: VolumeId) -> Sight:
    """Runs without volumes, which are most, cost no question."""
    wanted = {id for row in rows for id in policy_of(row["policy"]).volumes}.union(besides)
    if not wanted:
        return Sight({}, {})
    volumes = await store.some(tx, wanted)
    jobs = {job for one in volumes.values() if one.exclusive for job in one.held}
    holders = await store.holders(tx, jobs) if jobs else {}
    return Sight(volumes, {job: f"{one.run}/{one.replica}-{one.node}" for job, one in holders.items()})


class Volumes:
    """Says of those whose instance is gone that they are lost. Woken when an instance goes."""

    def __init__(self, database: Database, committer: Committer) -> None:
        self._database, self._committer = database, committer

    async def once(self) -> Counts:
        async with self._database.connection() as connection:
            found = await store.orphans(connection, PAGE)
        for one in found:
            lost = Lost(one.instance_id, f"it was on {one.where}, which is gone")
            await self._committer.commit(Change(facts=(of_volume(one.id, lost),)))
        return Counts(len(found), 0.0 if len(found) >= PAGE else None)


def went(moved: Iterable[Moved]) -> bool:
    """Whether an instance has gone, or a volume was given back on one that may have."""
    return any(
        (one.kind == "instance" and one.after.state is I.TERMINATED) or (one.kind == "volume" and not one.after.held)
        for one in moved
    )
