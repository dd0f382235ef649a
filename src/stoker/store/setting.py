"""Small things on which every replica must agree, kept where all of them look."""

from stoker.store.database import Connection

KEEP = "INSERT INTO setting (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING"

SECRET = "secret"
"""Tokens of runners are made from it."""
LOG_STORE = "log_store"
"""Which one the replicas share."""
FORGOTTEN = "journal_forgotten"
"""The highest number among the entries of the journal that were too old to be kept."""


async def get(tx: Connection, name: str) -> str | None:
    value: str | None = await tx.fetchval("SELECT value FROM setting WHERE name = $1", name)
    return value


async def put(tx: Connection, name: str, value: str) -> None:
    await tx.execute("UPDATE setting SET value = $2 WHERE name = $1", name, value)


async def agreed(tx: Connection, name: str, proposal: str) -> str:
    """What everybody uses: the first proposal that was made."""
    await tx.execute(KEEP, name, proposal)
    value: str = await tx.fetchval("SELECT value FROM setting WHERE name = $1", name)
    return value
