"""The append-only story of everything that changed."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from stoker.store import setting
from stoker.store.bundle import Bundle, Part
from stoker.store.database import Connection

APPEND = Part("journal_append", """
INSERT INTO journal (at, kind, id, family, event, source, target, note, by, scope)
SELECT $1, kind, id, family, event, source, target, note, by, scope
FROM pg_current_xact_id() AS own, unnest($2::journal_row[])
RETURNING 1
""", 2)  # fmt: skip
"""The transaction has its own number before it draws those of its entries: `store/tail.py` counts on that."""

STORY = """
SELECT seq, at, kind, id, family, event, source, target, note, by FROM journal
WHERE family = $1 AND seq > $2 ORDER BY seq LIMIT $3
"""

FORGET = """
WITH old AS (
    DELETE FROM journal WHERE seq IN (SELECT seq FROM journal WHERE at < $1 ORDER BY seq LIMIT $2) RETURNING seq
)
SELECT count(*), max(seq) FROM old
"""

MARK = """
INSERT INTO setting (name, value) VALUES ($1, $2)
ON CONFLICT (name) DO UPDATE SET value = greatest(setting.value::bigint, excluded.value::bigint)::text
"""

EVERYBODY = UUID(int=0)
"""The scope of what every project may see."""


class Entry(NamedTuple):
    kind: str
    id: UUID
    family: UUID
    event: str
    source: str | None
    target: str
    note: str
    by: str
    scope: UUID | None
    """Who may see it: a project, a fleet, or everybody."""


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
    """Retention; returns how many entries are gone. Up to which is kept: who asks for older ones is told."""
    ((number, last),) = await tx.fetch(FORGET, before, limit)
    if last is not None:
        await tx.execute(MARK, setting.FORGOTTEN, str(last))
    return int(number)
