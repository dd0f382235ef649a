"""Deadlines of records of every kind; what is due of each kind is asked in the file of its noun."""

from collections.abc import Iterable
from uuid import UUID

from stoker.store.database import Connection

NEXT = """
SELECT least(
    (SELECT min(deadline_at) FROM run WHERE deadline_at IS NOT NULL AND id <> ALL($1::uuid[])),
    (SELECT min(deadline_at) FROM job WHERE deadline_at IS NOT NULL AND id <> ALL($1::uuid[])),
    (SELECT min(deadline_at) FROM instance WHERE deadline_at IS NOT NULL AND id <> ALL($1::uuid[])),
    (SELECT min(deadline_at) FROM managed_job WHERE deadline_at IS NOT NULL AND id <> ALL($1::uuid[]))
)
"""


async def next_at(connection: Connection, but: Iterable[UUID]) -> float | None:
    """The earliest of all but these; it may have passed."""
    moment: float | None = await connection.fetchval(NEXT, list(but))
    return moment
