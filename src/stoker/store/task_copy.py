"""Swarm tasks that are to be done again: what did not succeed, with its edges."""

from collections.abc import Collection
from typing import Final

from stoker.core.graph import Edge
from stoker.core.ids import TaskId
from stoker.store.database import Connection, Record

UNSUCCESSFUL: Final = """
SELECT t.id, t.priority, t.max_retry_count, t.crash_limit, s.name, s.command, s.requested_resources,
       s.estimated_runtime, s.max_termination_time, s.detail, s.group_name, s.labels, k.options, k.key_name
FROM task t JOIN task_spec s ON s.task_id = t.id JOIN task_kind k ON k.id = t.kind_id
WHERE t.id = ANY($1::uuid[])
  AND (t.state = 'cancelled' OR (t.state = 'terminated' AND t.has_command AND t.exit_status IS DISTINCT FROM 0))
ORDER BY t.id
"""

# Of what ended without success, only what is done again itself is waited for.
EDGES_TO: Final = """
SELECT c.source, c.target FROM continuation c JOIN task t ON t.id = c.source
WHERE c.target = ANY($1::uuid[]) AND (
    c.source = ANY($1::uuid[]) OR t.state IN ('inactive', 'available', 'running')
)
"""

POISONED: Final = "SELECT id FROM task WHERE id = ANY($1::uuid[]) AND hold = 'poison' AND state = 'available'"


async def unsuccessful(conn: Connection, ids: Collection[TaskId]) -> list[Record]:
    return await conn.fetch(UNSUCCESSFUL, list(ids))


async def edges_to(conn: Connection, ids: Collection[object]) -> list[Edge]:
    return [Edge(*row) for row in await conn.fetch(EDGES_TO, list(ids))]


async def held(conn: Connection, ids: Collection[TaskId]) -> list[TaskId]:
    return [row["id"] for row in await conn.fetch(POISONED, list(ids))]
