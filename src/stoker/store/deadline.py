"""Deadlines of records of every kind; what is due of each kind is asked in the file of its noun."""

from collections.abc import Iterable
from uuid import UUID

from stoker.store.database import Connection

NEXT = """
SELECT least(
    (SELECT min(deadline_at) FROM run WHERE deadline_at IS NOT NULL AND id <> ALL($1::uuid[])),
    (SELECT min(deadline_at) FROM job WHERE deadline_at IS NOT NULL AND id <> ALL($1::uuid[])),
    (SELECT min(deadline_at) FROM instance WHERE deadline_at IS NOT NULL AND id <> ALL($1::uuid[])),
    (SELECT min(deadline_at) FROM volume WHERE deadline_at IS NOT NULL AND id <> ALL($1::uuid[])),
    (SELECT min(deadline_at) FROM managed_job WHERE deadline_at IS NOT NULL AND id <> ALL($1::uuid[]))
)
"""

SILENT = """
SELECT id FROM instance
WHERE deadline_at <= $1 AND deadline_at >= unreachable_since + $2 AND state IN ('IDLE', 'BUSY')
UNION ALL
SELECT id FROM job
WHERE deadline_at <= $1 AND deadline_at >= unreachable_since + $2 AND state = 'RUNNING'
"""
"""Due, and for no other reason than a silence of $2 seconds: any other deadline would have come before."""

RAN_BEFORE = "SELECT id FROM job WHERE deadline_at <= $1 AND state = 'RUNNING' AND running_at < $2"


async def silent(tx: Connection, now: float, limit_s: float) -> frozenset[UUID]:
    """Whose time is up because they were silent for so long."""
    return frozenset(row["id"] for row in await tx.fetch(SILENT, now, limit_s))


async def ran_before(tx: Connection, now: float, moment: float) -> frozenset[UUID]:
    """Jobs that ran already at that moment and whose time is up, as far as anybody has heard."""
    return frozenset(row["id"] for row in await tx.fetch(RAN_BEFORE, now, moment))


async def next_at(connection: Connection, but: Iterable[UUID]) -> float | None:
    """The earliest of all but these; it may have passed."""
    moment: float | None = await connection.fetchval(NEXT, list(but))
    return moment
