"""The way to each host's shim, and who watches it."""

from typing import NamedTuple
from uuid import UUID

from stoker.core.ids import InstanceId, ProjectId
from stoker.store.database import Connection

PUT = """
INSERT INTO host (instance_id, address, token, ip, project_id) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (instance_id) DO UPDATE
SET address = excluded.address, token = excluded.token, ip = excluded.ip, project_id = excluded.project_id
"""

GET = "SELECT address, token, ip FROM host WHERE instance_id = $1"

PROJECT = """
SELECT coalesce(
    (SELECT run.project_id FROM job JOIN run ON run.id = job.run_id
     WHERE job.instance_id = $1 AND job.state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
     ORDER BY job.id LIMIT 1),
    (SELECT fleet.project_id FROM instance JOIN fleet ON fleet.id = instance.fleet_id WHERE instance.id = $1)
)
"""

WATCH = """
UPDATE host SET watcher = $1
WHERE instance_id IN (
    SELECT host.instance_id FROM host JOIN instance ON instance.id = host.instance_id
    WHERE instance.state NOT IN ('PENDING', 'TERMINATED')
      AND (host.watcher IS NULL OR NOT EXISTS (SELECT FROM replica WHERE replica.epoch = host.watcher))
    ORDER BY host.instance_id FOR UPDATE OF host SKIP LOCKED
)
"""

WATCHED = """
SELECT host.instance_id FROM host JOIN instance ON instance.id = host.instance_id
WHERE host.watcher = $1 AND instance.state NOT IN ('PENDING', 'TERMINATED')
"""

ON_HOST = """
SELECT id, run_id, attempt, state, unreachable_since FROM job
WHERE instance_id = $1 AND state NOT IN ('SUBMITTED', 'DONE', 'FAILED', 'TERMINATED', 'ABORTED')
"""

NEXT_FENCE = "SELECT nextval('fence')"


class Host(NamedTuple):
    address: str
    token: str
    ip: str = "127.0.0.1"
    """Where other nodes of a run reach it."""


class Resident(NamedTuple):
    """A job that is, or may be, on a host."""

    id: UUID
    run_id: UUID
    attempt: int
    state: str
    unreachable_since: float | None


async def put(tx: Connection, instance_id: InstanceId, host: Host, project_id: ProjectId | None = None) -> None:
    """With the only project that its agent serves; None: any."""
    await tx.execute(PUT, instance_id, *host, project_id)


async def get(tx: Connection, instance_id: InstanceId) -> Host | None:
    row = await tx.fetchrow(GET, instance_id)
    return None if row is None else Host(*row)


async def project_of(tx: Connection, instance_id: InstanceId) -> ProjectId | None:
    """Whose jobs it was launched for, or whose fleet it is in; None: anybody's."""
    id: ProjectId | None = await tx.fetchval(PROJECT, instance_id)
    return id


async def watch(tx: Connection, epoch: int) -> set[InstanceId]:
    """Take what nobody watches, and tell everything that this replica watches now."""
    await tx.execute(WATCH, epoch)
    return {row["instance_id"] for row in await tx.fetch(WATCHED, epoch)}


async def residents(tx: Connection, instance_id: InstanceId) -> list[Resident]:
    return [Resident(*row) for row in await tx.fetch(ON_HOST, instance_id)]


async def next_fence(tx: Connection) -> int:
    """Higher than every order's so far."""
    fence: int = await tx.fetchval(NEXT_FENCE)
    return fence
