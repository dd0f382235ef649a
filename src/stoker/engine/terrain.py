"""What there is to place on and to launch in: unfinished instances and fleets, read under the placer's lock."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from stoker.core.fleet import Fleet, redivided, site_of
from stoker.core.gang import InstanceRoom
from stoker.core.ids import FleetId, InstanceId, ProjectId, instance_name
from stoker.core.instance_facts import LIVE, UP, Instance, S
from stoker.core.offer import FleetRoom
from stoker.engine.rooms import Rooms
from stoker.store import fleet as fleet_store
from stoker.store.database import Connection
from stoker.store.fleet import Standing
from stoker.store.instance import Unfinished

NOT_ALLOWED: Final = "it asks for all rights on its host, and no fleet that it may use says allow_privileged: true"


class Usable(NamedTuple):
    """Which fleets a run may use; None: any. `absent` are names that nothing stands for any more."""

    fleets: frozenset[FleetId] | None
    absent: tuple[str, ...] = ()
    refused: str = ""
    """Why it may use none, where they would be there."""


@dataclass(frozen=True, slots=True)
class Terrain:
    unfinished: list[Unfinished]
    fleets: list[Standing]
    divisions: tuple[tuple[InstanceId, int], ...]
    """Instances that nobody uses and that have to be divided anew; `unfinished` has them divided already."""

    @property
    def instances(self) -> dict[InstanceId, Instance]:
        return {one.instance.id: one.instance for one in self.unfinished}

    @property
    def names(self) -> dict[InstanceId, str]:
        return {one.instance.id: instance_name(one.instance.backend, one.instance.id) for one in self.unfinished}

    def rooms(self) -> list[InstanceRoom]:
        going = {one.id for one in self.fleets if one.policy.deleting}
        return [_room(one, one.instance.fleet_id in going) for one in self.unfinished]

    def fleet_rooms(self) -> list[FleetRoom]:
        """What each fleet still allows to launch, beside the instances that are there."""
        mine = by_fleet(one.instance for one in self.unfinished)
        rooms = (one.policy.room(one.id, one.project_id, mine.get(one.id, [])) for one in self.fleets)
        return [room for room in rooms if room is not None]

    def usable(
        self, names: tuple[str, ...] | None, project_id: ProjectId | None, *, privileged: bool = False
    ) -> Usable:
        """`privileged`: only those that allow it."""
        found = self._named(names, project_id)
        if not privileged:
            return found
        allowed = frozenset(
            one.id
            for one in self.fleets
            if one.allows_privileged and one.project_id in (None, project_id) and not one.policy.deleting
        )
        fleets = allowed if found.fleets is None else allowed & found.fleets
        return found._replace(fleets=fleets, refused="" if fleets else NOT_ALLOWED)

    def _named(self, names: tuple[str, ...] | None, project_id: ProjectId | None) -> Usable:
        if names is None:
            return Usable(None)
        ids = {(one.name, one.project_id): one.id for one in self.fleets if not one.policy.deleting}
        found = {name: ids.get((name, project_id)) or ids.get((name, None)) for name in names}
        return Usable(
            frozenset(id for id in found.values() if id is not None),
            tuple(name for name, id in found.items() if id is None),
        )


async def survey(tx: Connection, rooms: Rooms) -> Terrain:
    unfinished, fleets = await rooms.look(tx), await fleet_store.standing(tx)
    policies = {one.id: one.policy for one in fleets}
    divisions = dict(to_divide((one.instance for one in unfinished), policies))
    if divisions:
        unfinished = [
            one._replace(instance=redivided(one.instance, divisions[one.instance.id]))
            if one.instance.id in divisions
            else one
            for one in unfinished
        ]
    return Terrain(unfinished, fleets, tuple(divisions.items()))


def to_divide(instances: Iterable[Instance], policies: Mapping[FleetId, Fleet]) -> Iterable[tuple[InstanceId, int]]:
    """Only while nobody holds a block, and by whoever has the placer's lock: what is planned counts in blocks."""
    for one in instances:
        policy = policies.get(one.fleet_id) if one.fleet_id is not None and one.state is S.IDLE else None
        if policy is not None and (total := policy.divides(one)) is not None:
            yield one.id, total


def by_fleet(instances: Iterable[Instance]) -> dict[FleetId, list[Instance]]:
    found: dict[FleetId, list[Instance]] = {}
    for one in instances:
        if one.fleet_id is not None:
            found.setdefault(one.fleet_id, []).append(one)
    return found


def _room(unfinished: Unfinished, going: bool) -> InstanceRoom:
    one, barred = unfinished.instance, ""
    if one.state not in LIVE:
        barred = one.state.value
    elif going:
        barred = "in a fleet that is being deleted"
    elif one.cordoned:
        barred = "cordoned"
    elif one.unreachable_since is not None:
        barred = "unreachable"
    elif one.health:
        barred = f"unhealthy: {one.health}"
    return InstanceRoom(
        one.id, one.blocks, one.fleet_id, ready=one.state in UP, barred=barred, name=instance_name(one.backend, one.id),
        project_id=unfinished.project_id, site=site_of(one),
    )  # fmt: skip
