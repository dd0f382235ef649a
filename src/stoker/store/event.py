"""The journal as people read it: by run, or by project."""

from typing import NamedTuple
from uuid import UUID

from stoker.core.ids import ProjectId, RunId
from stoker.store.database import Connection

_COLUMNS = """
journal.seq, journal.at, spec.name AS run, journal.family, journal.kind, journal.id, journal.event, journal.source,
journal.target, journal.note, journal.by
"""

OF_RUN = f"""
SELECT {_COLUMNS} FROM journal JOIN run_spec AS spec ON spec.run_id = journal.family
WHERE journal.family = $1 AND journal.seq > $2 ORDER BY journal.seq LIMIT $3
"""

OF_PROJECT = f"""
SELECT {_COLUMNS} FROM journal JOIN run_spec AS spec ON spec.run_id = journal.family
WHERE spec.project_id = $1 AND journal.seq > $2 ORDER BY journal.seq LIMIT $3
"""

TROUBLES = """
SELECT made_at, effect, error, tries, due_at FROM outbox WHERE family = $1 AND error <> '' ORDER BY made_at, id LIMIT 20
"""

NEWEST = "SELECT coalesce(max(seq), 0) FROM journal"


class Told(NamedTuple):
    seq: int
    at: float
    run: str
    run_id: UUID
    kind: str
    id: UUID
    event: str
    source: str | None
    target: str
    note: str
    by: str


class Trouble(NamedTuple):
    since: float
    effect: str
    error: str
    tries: int
    next_at: float


async def of_run(tx: Connection, run_id: RunId, after: int, limit: int) -> list[Told]:
    return [Told(*row.values()) for row in await tx.fetch(OF_RUN, run_id, after, limit)]


async def of_project(tx: Connection, project_id: ProjectId, after: int, limit: int) -> list[Told]:
    return [Told(*row.values()) for row in await tx.fetch(OF_PROJECT, project_id, after, limit)]


async def troubles(tx: Connection, run_id: RunId) -> list[Trouble]:
    """What is being tried for this run and fails."""
    return [Trouble(*row.values()) for row in await tx.fetch(TROUBLES, run_id)]


async def newest(tx: Connection) -> int:
    seq: int = await tx.fetchval(NEWEST)
    return seq
