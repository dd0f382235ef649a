"""Fleets as rows: named groups of instances, of one project or for all."""

from typing import NamedTuple
from uuid import UUID

from stoker.core.ids import FleetId, ProjectId
from stoker.store.database import Connection

ENSURE = """
INSERT INTO fleet (id, name, project_id, spec, created_at) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name, project_id) DO UPDATE SET spec = excluded.spec RETURNING id
"""

_SHOWN = """
SELECT fleet.id, fleet.name, project.name AS project, fleet.spec, fleet.created_at,
       (SELECT count(*) FROM instance WHERE fleet_id = fleet.id AND state <> 'TERMINATED') AS instances
FROM fleet LEFT JOIN project ON project.id = fleet.project_id
WHERE (fleet.project_id IS NULL OR fleet.project_id = $1)
"""

PAGE = f"{_SHOWN} AND fleet.id > $2 ORDER BY fleet.id LIMIT $3"

GET = f"{_SHOWN} AND fleet.name = $2 ORDER BY fleet.project_id NULLS LAST LIMIT 1"


class Fleet(NamedTuple):
    id: FleetId
    name: str
    project: str | None
    spec: str
    created_at: float
    instances: int


async def ensure(
    tx: Connection, id: FleetId, name: str, project_id: ProjectId | None, spec: str, now: float
) -> FleetId:
    """Makes it unless one of that name is there, whose id it then returns; `spec` is JSON."""
    kept: FleetId = await tx.fetchval(ENSURE, id, name, project_id, spec, now)
    return kept


async def page(tx: Connection, project_id: ProjectId, after: UUID, limit: int) -> list[Fleet]:
    """Those that the project may use."""
    return [Fleet(*row.values()) for row in await tx.fetch(PAGE, project_id, after, limit)]


async def get(tx: Connection, project_id: ProjectId, name: str) -> Fleet | None:
    row = await tx.fetchrow(GET, project_id, name)
    return Fleet(*row.values()) if row else None
