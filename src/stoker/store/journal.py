"""The append-only story of everything that changed."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from stoker.store.bundle import Bundle, Part
from stoker.store.database import Connection

APPEND = Part("journal_append", """
INSERT INTO journal (at, kind, id, family, event, source, target, note, by)
SELECT $1, kind, id, family, event, source, target, note, by FROM unnest($2::journal_row[])
RETURNING 1
""", 2)  # fmt: skip

STORY = """
SELECT seq, at, kind, id, family, event, source, target, note, by FROM journal
WHERE family = $1 AND seq > $2 ORDER BY seq LIMIT $3
"""

FORGET = """
DELETE FROM journal WHERE seq IN (SELECT seq FROM journal WHERE at < $1 ORDER BY seq LIMIT $2)
"""


class Entry(NamedTuple):
    kind: str
    id: UUID
    family: UUID
    event: str
    source: str | None
    target: str
    note: str
    by: str


class Line(NamedTuple):
    seq: int
    at: float
    kind: str
    id: UUID
    family: UUID
    event: str
    source: str | None
    target: str
    note: str
    by: str


def append(bundle: Bundle, entries: Sequence[Entry], now: float) -> None:
    bundle.add(APPEND, [now, entries])


async def story(tx: Connection, family: UUID, after: int = 0, limit: int = 1000) -> list[Line]:
    """One thing's life, oldest first."""
    return [Line(*row.values()) for row in await tx.fetch(STORY, family, after, limit)]


async def forget(tx: Connection, before: float, limit: int) -> int:
    """Retention; returns how many entries are gone."""
    return int((await tx.execute(FORGET, before, limit)).rpartition(" ")[2])
