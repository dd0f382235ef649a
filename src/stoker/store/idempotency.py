"""What was made under a key that its caller chose, so that asking twice makes it once."""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from stoker.store.bundle import Bundle, Part
from stoker.store.database import Connection

INSERT = Part(
    "idempotency_insert",
    """
INSERT INTO idempotency (key, digest, answer, made_at)
SELECT key, digest, answer, $1 FROM unnest($2::idempotency_row[])
RETURNING 1
""",
    2,
)
"""A key that is there already breaks the batch: what it was to be made with must not be made again."""

FORGET = """
DELETE FROM idempotency WHERE key IN (SELECT key FROM idempotency WHERE made_at < $1 LIMIT $2)
"""


class Claim(NamedTuple):
    """`answer` is JSON that says what was made."""

    key: bytes
    digest: bytes
    answer: str


def key_of(*parts: object) -> bytes:
    """Who, where, and the key itself; hashed, so that what clients chose is not kept."""
    return hashlib.sha256("\0".join(map(str, parts)).encode()).digest()


def insert(bundle: Bundle, claims: Sequence[Claim], now: float) -> None:
    bundle.add(INSERT, [now, claims])


async def add(tx: Connection, claim: Claim, now: float) -> None:
    """For what is made in a transaction of its own."""
    await tx.execute("INSERT INTO idempotency VALUES ($1, $2, $3, $4)", *claim, now)


async def find(tx: Connection, key: bytes) -> Claim | None:
    row = await tx.fetchrow("SELECT key, digest, answer FROM idempotency WHERE key = $1", key)
    return Claim(*row.values()) if row else None


async def forget(tx: Connection, before: float, limit: int) -> int:
    """Retention; returns how many are gone."""
    return int((await tx.execute(FORGET, before, limit)).rpartition(" ")[2])
