"""Fleets as rows: named groups of instances, of one project or for all."""

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from stoker.core import fleet as core
from stoker.core.ids import FleetId, ProjectId
from stoker.store.database import Connection

INSERT = """
INSERT INTO fleet (id, name, project_id, spec, policy, created_at) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (name, project_id) WHERE deleted_at IS NULL DO NOTHING
"""

NAMED = """
SELECT id, policy FROM fleet WHERE name = $1 AND project_id IS NOT DISTINCT FROM $2 AND deleted_at IS NULL
"""

_SHOWN = """
SELECT fleet.id, fleet.name, project.name AS project, fleet.project_id, fleet.spec, fleet.policy, fleet.version,
       fleet.created_at, instances, idle, busy, leaving, price, mine.cost + gone.cost AS cost
FROM fleet LEFT JOIN project ON project.id = fleet.project_id
CROSS JOIN LATERAL (
    SELECT count(*) AS instances, count(*) FILTER (WHERE state = 'IDLE') AS idle,
           count(*) FILTER (WHERE state = 'BUSY') AS busy, count(*) FILTER (WHERE state = 'TERMINATING') AS leaving,
           coalesce(sum(price) FILTER (WHERE launched_at IS NOT NULL), 0) AS price,
           coalesce(sum(price * greatest(0, $2 - launched_at) / 3600), 0) AS cost
    FROM instance WHERE fleet_id = fleet.id AND state <> 'TERMINATED'
) AS mine
CROSS JOIN LATERAL (
    SELECT coalesce(sum(price * greatest(0, ended_at - launched_at) / 3600), 0) AS cost
    FROM instance
    WHERE fleet_id = fleet.id AND state = 'TERMINATED' AND price > 0 AND launched_at IS NOT NULL
) AS gone
WHERE (fleet.project_id IS NULL OR fleet.project_id = $1) AND fleet.deleted_at IS NULL
"""

PAGE = f"""
{_SHOWN} AND fleet.id > $3 AND coalesce(fleet.spec -> 'tags', '{{}}') @> $5 ORDER BY fleet.id LIMIT $4
"""

GET = f"{_SHOWN} AND fleet.name = $3 ORDER BY fleet.project_id NULLS LAST LIMIT 1"

OWN_HOST = "local"
"""The fleet of the server's own host."""

POLICIES = """
SELECT id, project_id, policy, name, (SELECT count(*) = 1 FROM "user") AS alone
FROM fleet WHERE deleted_at IS NULL ORDER BY id
"""

NAMES = """
SELECT name FROM fleet
WHERE (project_id IS NULL OR project_id = $1) AND deleted_at IS NULL AND NOT policy @> '{"deleting": true}'
ORDER BY name LIMIT 500
"""

CHANGE = """
UPDATE fleet SET spec = $3, policy = $4, version = version + 1 WHERE id = $1 AND version = $2 AND deleted_at IS NULL
RETURNING version
"""

BURY = """
UPDATE fleet SET deleted_at = $1, version = version + 1
WHERE deleted_at IS NULL AND policy @> '{"deleting": true}'
  AND NOT EXISTS (SELECT FROM instance WHERE fleet_id = fleet.id AND state <> 'TERMINATED')
RETURNING id
"""


CHANGES = """
SELECT note, by FROM journal WHERE family = $1 AND kind = 'fleet' AND note <> '' ORDER BY seq DESC LIMIT $2
"""


REACHES = """
SELECT fleet.name, fleet.policy,
       (SELECT count(*) FROM instance WHERE fleet_id = fleet.id AND state NOT IN ('TERMINATING', 'TERMINATED'))
FROM fleet WHERE project_id IS NULL OR project_id = $1
UNION ALL
SELECT '', '{}', count(*) FROM instance WHERE fleet_id IS NULL AND state NOT IN ('TERMINATING', 'TERMINATED')
"""


class Standing(NamedTuple):
    """A fleet as it is decided by."""

    id: FleetId
    project_id: ProjectId | None
    policy: core.Fleet
    name: str
    alone: bool = False
    """The server has one user."""

    @property
    def allows_privileged(self) -> bool:
        """Whether a job may be root on its hosts."""
        if self.policy.allow_privileged is None:
            return self.alone and self.name == OWN_HOST
        return self.policy.allow_privileged


class Fleet(NamedTuple):
    id: FleetId
    name: str
    project: str | None
    project_id: ProjectId | None
    spec: str
    policy: str
    version: int
    created_at: float
    instances: int
    idle: int
    busy: int
    leaving: int
    price: float
    """Of its instances together, an hour."""
    cost: float
    """So far, also of those that are gone."""


async def ensure(
    tx: Connection, id: FleetId, name: str, project_id: ProjectId | None, spec: str, policy: core.Fleet, now: float
) -> tuple[FleetId, core.Fleet]:
    """Makes it unless one of that name is there, which then stays as it is; `spec` is JSON."""
    await insert(tx, id, name, project_id, spec, policy, now)
    row = await tx.fetchrow(NAMED, name, project_id)
    assert row is not None
    return row["id"], policy_of(row["policy"])


async def insert(
    tx: Connection, id: FleetId, name: str, project_id: ProjectId | None, spec: str, policy: core.Fleet, now: float
) -> bool:
    """False: the name is taken."""
    done = await tx.execute(INSERT, id, name, project_id, spec, json.dumps(policy.to_json()), now)
    return done.endswith(" 1")


async def change(tx: Connection, id: FleetId, version: int, spec: str, policy: core.Fleet) -> int | None:
    """Its new version; None when it has changed since that one."""
    made: int | None = await tx.fetchval(CHANGE, id, version, spec, json.dumps(policy.to_json()))
    return made


async def bury(tx: Connection, now: float) -> list[FleetId]:
    """Those that are being deleted and have no instance left. The rows stay: their machines have a history."""
    return [row["id"] for row in await tx.fetch(BURY, now)]


async def page(
    tx: Connection, project_id: ProjectId, now: float, after: UUID, limit: int, tags: Mapping[str, str] | None = None
) -> list[Fleet]:
    """Those that the project may use, with all of these tags."""
    wanted = json.dumps(dict(tags or {}))
    return [Fleet(*row.values()) for row in await tx.fetch(PAGE, project_id, now, after, limit, wanted)]


async def get(tx: Connection, project_id: ProjectId, now: float, name: str) -> Fleet | None:
    row = await tx.fetchrow(GET, project_id, now, name)
    return Fleet(*row.values()) if row else None


async def changes(tx: Connection, id: FleetId, most: int) -> list[tuple[str, str]]:
    """The last ones, oldest first: what was changed, and by whom."""
    return [(row["note"], row["by"]) for row in reversed(await tx.fetch(CHANGES, id, most))]


async def names(tx: Connection, project_id: ProjectId) -> list[str]:
    """Of those that the project may use."""
    return [row["name"] for row in await tx.fetch(NAMES, project_id)]


async def standing(tx: Connection) -> list[Standing]:
    return [
        Standing(row["id"], row["project_id"], policy_of(row["policy"]), row["name"], row["alone"])
        for row in await tx.fetch(POLICIES)
    ]


async def reaches(tx: Connection, project_id: ProjectId) -> list[core.Reach]:
    """How many instances each fleet that the project may use can ever have."""
    rows = [(name, policy_of(policy), count) for name, policy, count in await tx.fetch(REACHES, project_id)]
    return [core.reach_of(name, policy, count) for name, policy, count in rows if not policy.deleting]


@lru_cache(maxsize=1024)
def policy_of(text: str) -> core.Fleet:
    return core.Fleet.from_json(json.loads(text))
