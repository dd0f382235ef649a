"""Hosts that are reached by SSH as rows: routes, steps, pinned keys, and private keys that are sealed."""

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from stoker.core.ids import FleetId, InstanceId, ProjectId
from stoker.core.route import Route
from stoker.store.database import Connection

TAKEN = """
SELECT ssh_host.place, fleet.name, fleet.project_id, still.wanted
FROM ssh_host JOIN fleet ON fleet.id = ssh_host.fleet_id
CROSS JOIN LATERAL (
    SELECT ssh_host.wanted AND fleet.deleted_at IS NULL AND NOT fleet.policy @> '{"deleting": true}' AS wanted
) AS still
WHERE ssh_host.place = ANY($1::text[]) AND ssh_host.fleet_id <> $2
  AND (still.wanted OR EXISTS (
      SELECT FROM instance
      WHERE fleet_id = fleet.id AND location = ssh_host.place AND state <> 'TERMINATED'
  ))
ORDER BY ssh_host.place
"""

FREE = "DELETE FROM ssh_host WHERE place = ANY($1::text[]) AND fleet_id <> $2"

PUT = """
INSERT INTO ssh_host (fleet_id, place, route)
SELECT $1, place, route FROM unnest($2::text[], $3::jsonb[]) AS new (place, route)
ON CONFLICT (fleet_id, place) DO UPDATE SET route = excluded.route, wanted = true
"""

UNWANTED = "UPDATE ssh_host SET wanted = false WHERE fleet_id = $1 AND NOT place = ANY($2::text[])"

GET = """
SELECT ssh_host.fleet_id, fleet.project_id, ssh_host.place, ssh_host.route, ssh_host.wanted, ssh_host.touched,
       ssh_host.steps, ssh_host.trouble, fleet.name AS fleet, fleet.policy
FROM instance JOIN fleet ON fleet.id = instance.fleet_id
JOIN ssh_host ON ssh_host.fleet_id = fleet.id AND ssh_host.place = instance.location
WHERE instance.id = $1
"""

STEPS = "UPDATE ssh_host SET steps = $3, trouble = $4 WHERE fleet_id = $1 AND place = $2"
TROUBLE = """
UPDATE ssh_host SET trouble = $2 FROM instance
WHERE instance.id = $1 AND ssh_host.fleet_id = instance.fleet_id AND ssh_host.place = instance.location
  AND ssh_host.trouble <> $2
"""
TOUCH = "UPDATE ssh_host SET touched = $3 WHERE fleet_id = $1 AND place = $2"
GONE = "DELETE FROM ssh_host WHERE fleet_id = $1 AND place = $2 AND NOT wanted"

TOLD = """
SELECT instance.id, ssh_host.steps, ssh_host.trouble
FROM instance JOIN ssh_host ON ssh_host.fleet_id = instance.fleet_id AND ssh_host.place = instance.location
WHERE instance.id = ANY($1::uuid[])
"""

TENDED = """
SELECT instance.id FROM instance JOIN host ON host.instance_id = instance.id
WHERE instance.backend = 'ssh' AND instance.state IN ('PROVISIONING', 'IDLE', 'BUSY') AND host.watcher = $1
ORDER BY instance.id
"""

OWNER = """
SELECT instance.state <> 'TERMINATED' AS alive, fleet.name, fleet.project_id
FROM instance LEFT JOIN fleet ON fleet.id = instance.fleet_id WHERE instance.id = $1
"""

PIN = "INSERT INTO ssh_pin (place, key, pinned_at) VALUES ($1, $2, $3) ON CONFLICT (place) DO NOTHING"
OFFERED = "UPDATE ssh_pin SET offered = $2 WHERE place = $1"
REPIN = """
UPDATE ssh_pin SET key = offered, offered = '', pinned_at = $3 WHERE place = $1 AND offered = $2 RETURNING 1
"""

KEEP_KEY = """
INSERT INTO ssh_key (project_id, fleet_id, name, public, sealed, made_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (fleet_id, name) WHERE fleet_id IS NOT NULL
DO UPDATE SET public = excluded.public, sealed = excluded.sealed, made_at = excluded.made_at
"""
MAKE_KEY = """
INSERT INTO ssh_key (project_id, fleet_id, name, public, sealed, made_at) VALUES ($1, NULL, '', $2, $3, $4)
ON CONFLICT (project_id) WHERE fleet_id IS NULL DO NOTHING
"""


HURRY = """
UPDATE outbox SET due_at = $2 FROM instance
WHERE outbox.kind = 'instance' AND outbox.target = instance.id AND instance.fleet_id = $1 AND outbox.due_at > $2
"""


class Taken(NamedTuple):
    """A place that another fleet has."""

    place: str
    fleet: str
    project_id: ProjectId | None
    wanted: bool
    """False: it is leaving it."""


class SshHost(NamedTuple):
    fleet_id: FleetId
    project_id: ProjectId | None
    place: str
    route: Route
    wanted: bool
    touched: bool
    steps: list[dict[str, Any]]
    trouble: str
    fleet: str
    policy: str


class Told(NamedTuple):
    steps: list[dict[str, Any]]
    trouble: str


class Pin(NamedTuple):
    key: str
    offered: str
    """Another one that it showed since; nothing: none."""


class Key(NamedTuple):
    name: str
    public: str
    sealed: bytes


class Owner(NamedTuple):
    alive: bool
    fleet: str | None
    project_id: ProjectId | None


async def taken(tx: Connection, places: Iterable[str], fleet_id: FleetId) -> list[Taken]:
    """Those that another fleet names, or has not left yet."""
    return [Taken(*row) for row in await tx.fetch(TAKEN, list(places), fleet_id)]


async def put(tx: Connection, fleet_id: FleetId, routes: Sequence[Route]) -> None:
    """These are the hosts of the fleet, and no others."""
    places = [route.place for route in routes]
    await tx.execute(FREE, places, fleet_id)
    await tx.execute(PUT, fleet_id, places, [json.dumps(route.to_json()) for route in routes])
    await tx.execute(UNWANTED, fleet_id, places)


async def get(tx: Connection, instance_id: InstanceId) -> SshHost | None:
    row = await tx.fetchrow(GET, instance_id)
    if row is None:
        return None
    fields = dict(row)
    fields |= {"route": Route.from_json(json.loads(fields["route"])), "steps": json.loads(fields["steps"])}
    return SshHost(**fields)


async def set_steps(tx: Connection, host: SshHost, steps: Sequence[dict[str, Any]], trouble: str) -> None:
    await tx.execute(STEPS, host.fleet_id, host.place, json.dumps(list(steps), ensure_ascii=False), trouble)


async def set_trouble(tx: Connection, instance_id: InstanceId, trouble: str) -> None:
    """What stands in the way of a host that is up; nothing: it is as it should be."""
    await tx.execute(TROUBLE, instance_id, trouble)


async def touch(tx: Connection, host: SshHost, touched: bool) -> None:
    await tx.execute(TOUCH, host.fleet_id, host.place, touched)


async def forget(tx: Connection, host: SshHost) -> None:
    """Unless its fleet wants it, nothing is to be known of it any more."""
    await tx.execute(GONE, host.fleet_id, host.place)


async def told(tx: Connection, ids: Iterable[InstanceId]) -> dict[UUID, Told]:
    """What is being done on each, for people."""
    rows = await tx.fetch(TOLD, list(ids))
    return {row["id"]: Told(json.loads(row["steps"]), row["trouble"]) for row in rows}


async def tended(tx: Connection, epoch: int) -> list[InstanceId]:
    """Those that are up, as far as this replica watches them."""
    return [row["id"] for row in await tx.fetch(TENDED, epoch)]


async def owner(tx: Connection, instance_id: UUID) -> Owner | None:
    row = await tx.fetchrow(OWNER, instance_id)
    return None if row is None else Owner(*row)


async def pins(tx: Connection, places: Iterable[str]) -> dict[str, Pin]:
    rows = await tx.fetch("SELECT place, key, offered FROM ssh_pin WHERE place = ANY($1::text[])", list(places))
    return {row["place"]: Pin(row["key"], row["offered"]) for row in rows}


async def pin(tx: Connection, place: str, key: str, now: float) -> None:
    """The first one stays."""
    await tx.execute(PIN, place, key, now)


async def offered(tx: Connection, place: str, key: str) -> None:
    """Another one than the one that is pinned; nothing: it shows that one again."""
    await tx.execute(OFFERED, place, key)


async def repin(tx: Connection, place: str, key: str, now: float) -> bool:
    """Takes the one that was offered; False when that is another."""
    return await tx.fetchval(REPIN, place, key, now) is not None


async def keep_key(tx: Connection, project_id: ProjectId, fleet_id: FleetId, key: Key, now: float) -> None:
    await tx.execute(KEEP_KEY, project_id, fleet_id, key.name, key.public, key.sealed, now)


async def make_key(tx: Connection, project_id: ProjectId, key: Key, now: float) -> Key:
    """The project's own: the first one that was made."""
    await tx.execute(MAKE_KEY, project_id, key.public, key.sealed, now)
    made = await project_key(tx, project_id)
    assert made is not None
    return made


async def project_key(tx: Connection, project_id: ProjectId) -> Key | None:
    row = await tx.fetchrow(
        "SELECT name, public, sealed FROM ssh_key WHERE project_id = $1 AND fleet_id IS NULL", project_id
    )
    return None if row is None else Key(*row)


async def fleet_keys(tx: Connection, fleet_id: FleetId) -> dict[str, Key]:
    rows = await tx.fetch("SELECT name, public, sealed FROM ssh_key WHERE fleet_id = $1", fleet_id)
    return {row["name"]: Key(*row) for row in rows}


async def hurry(tx: Connection, fleet_id: FleetId, now: float) -> None:
    """What went wrong on its hosts is tried again at once: somebody has changed something."""
    await tx.execute(HURRY, fleet_id, now)


async def bury(tx: Connection, fleet_ids: Iterable[FleetId]) -> None:
    """Of fleets that are gone nothing is kept: neither their keys nor where their hosts were."""
    gone = list(fleet_ids)
    await tx.execute("DELETE FROM ssh_key WHERE fleet_id = ANY($1::uuid[])", gone)
    await tx.execute("DELETE FROM ssh_host WHERE fleet_id = ANY($1::uuid[])", gone)
