"""Deadlines of records of every kind; what is due of each kind is asked in the file of its noun."""

from stoker.store.database import Connection

NEXT = """
SELECT least(
    (SELECT min(deadline_at) FROM run WHERE deadline_at IS NOT NULL),
    (SELECT min(deadline_at) FROM job WHERE deadline_at IS NOT NULL),
    (SELECT min(deadline_at) FROM instance WHERE deadline_at IS NOT NULL),
    (SELECT min(deadline_at) FROM managed_job WHERE deadline_at IS NOT NULL)
)
"""


async def next_at(connection: Connection) -> float | None:
    """The earliest of all; it may have passed."""
    moment: float | None = await connection.fetchval(NEXT)
    return moment
