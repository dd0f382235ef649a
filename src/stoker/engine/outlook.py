"""What placement would do now, for people who ask: nothing is changed, and nobody waits for the answer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from stoker.core.gang import Gang, InstanceRoom
from stoker.core.ids import JobId, ProjectId, RunId, VolumeId
from stoker.core.limits import MOST_GANGS
from stoker.core.offer import FleetRoom, Offer, in_reach
from stoker.core.placement import Plan, plan
from stoker.core.why import Why
from stoker.engine.placement import WAITING, Merchant, common, gang_of, within
from stoker.engine.rooms import Rooms
from stoker.engine.terrain import Terrain, Usable, survey
from stoker.engine.volume import Sight, see
from stoker.store import gang as gang_store
from stoker.store.database import Connection, Record
from stoker.store.gang import AHEAD, ONE, Standing

MOST_REPLICAS = 10_000
NOBODY = JobId(UUID(int=0))


class Scene(NamedTuple):
    """What there is to be placed on."""

    rooms: list[InstanceRoom]
    offers: Sequence[Offer]
    fleets: list[FleetRoom]


class Outlook(NamedTuple):
    """Why a run waits, told by the first of its replicas; None when that one is about to be placed."""

    why: Why | None
    gang: Gang | None
    replicas: list[Standing]
    scene: Scene


async def scene(
    tx: Connection,
    merchant: Merchant,
    rooms: Rooms,
    now: float,
    fleets: tuple[str, ...] | None,
    project_id: ProjectId,
) -> tuple[Scene, Usable]:
    """And which of it a run that may use `fleets` of these names has."""
    terrain = await survey(tx, rooms)
    return _scene(terrain, merchant, now), terrain.usable(fleets, project_id)


def _scene(terrain: Terrain, merchant: Merchant, now: float) -> Scene:
    fleets = terrain.fleet_rooms()
    return Scene(terrain.rooms(), in_reach(merchant.offers(now), fleets), fleets)


async def look(
    tx: Connection,
    merchant: Merchant,
    rooms: Rooms,
    now: float,
    *,
    besides: Gang,
    fleets: tuple[str, ...] | None = None,
    privileged: bool = False,
    volumes: Sequence[VolumeId] = (),
) -> tuple[Plan, Gang, Scene]:
    """The plan of the next pass, with a gang that does not exist yet, which may use `fleets` of these names: it is told
    of, and given back with what these are."""
    terrain = await survey(tx, rooms)
    rows = within(await tx.fetch(WAITING, MOST_GANGS))
    sight = await see(tx, rows, *volumes)
    gangs = [gang_of(row, terrain, sight) for row in rows]
    usable = terrain.usable(fleets, besides.project_id, privileged=privileged)
    tie = sight.tie(volumes, terrain.names)
    mine = replace(
        besides,
        fleets=common(usable.fleets, tie.fleets),
        absent=usable.absent,
        refused=usable.refused,
        only=tie.only,
        tied=tie.tied,
        claims=tie.claims,
        barred=tie.barred,
        hopeless=tie.hopeless,
    )
    seen = _scene(terrain, merchant, now)
    made = plan([*gangs, mine], *seen, now=now, detail={mine.run_id}, told=lambda gang: gang is mine)
    return made, mine, seen


async def why_of(tx: Connection, merchant: Merchant, rooms: Rooms, run_id: RunId, now: float) -> Outlook:
    """The plan goes only as far as the run: what waits behind it does not keep it waiting."""
    replicas = await gang_store.of_run(tx, run_id, MOST_REPLICAS)
    terrain = await survey(tx, rooms)
    seen = _scene(terrain, merchant, now)
    if not replicas:
        return Outlook(None, None, [], seen)
    # One that may be tried says more than one that has to wait in any case.
    first = next((one for one in replicas if not one.held_up), replicas[0])
    row = await tx.fetchrow(ONE, run_id, first.replica)
    rows = await tx.fetch(AHEAD, MOST_GANGS, first.priority, first.submitted_at, run_id, first.replica)
    if row is None or not rows:
        return Outlook(None, None, replicas, seen)
    kept, itself = within(rows), (run_id, first.replica)
    others = [one for one in kept if one["run_id"] != run_id or (one["run_id"], one["replica"]) != itself]
    if len(rows) < MOST_GANGS and len(others) == len(kept):
        # Its run has as many on machines as it may.
        return Outlook(None, None, replicas, seen)
    # One so far behind that no pass looks at it is told why it would wait if it were the next.
    sight = await see(tx, [row, *others])
    mine = gang_of(row, terrain, sight)
    made = plan(
        [*_ahead(others, terrain, sight), mine], *seen, now=now, detail={run_id}, told=lambda gang: gang is mine
    )
    why = next((replace(why, place=rows[0]["place"], of=rows[0]["waiting"]) for why in made.left), None)
    return Outlook(why, mine, replicas, seen)


def _ahead(rows: Sequence[Record], terrain: Terrain, sight: Sight) -> Iterator[Gang]:
    """Of these only the size matters, and not which jobs they have."""
    known: dict[tuple[object, ...], Gang] = {}
    for row in rows:
        run_id, replica, submitted_at, *asked = row.values()
        key = tuple(asked)
        like = known.get(key)
        if like is None:
            jobs = row["jobs"]
            made = {**row, "jobs": (NOBODY,) * jobs, "nodes": range(jobs)}
            like = known[key] = gang_of(made, terrain, sight)
        yield like.at(run_id, replica, submitted_at)
