"""Wishes that are committed and not yet fulfilled, each owned by the epoch of one replica."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from stoker.store.bundle import Bundle, Part, columns
from stoker.store.database import Connection, Record

_COLUMNS = "id, fence, kind, target, family, attempt, phase, effect, payload, tries"

ADD = Part("outbox_add", """
INSERT INTO outbox (id, owner, kind, target, family, attempt, phase, effect, payload, made_at, due_at)
SELECT id, $1, kind, target, family, attempt, phase, effect, payload, $2, $2
FROM unnest($3::outbox_row[]) WITH ORDINALITY AS new (id, kind, target, family, attempt, phase, effect, payload, place)
ORDER BY place
RETURNING fence
""", 3, answer="array_agg(fence ORDER BY fence)")  # fmt: skip

REMOVE = Part("outbox_remove", """
DELETE FROM outbox USING unnest($1::uuid[], $2::int8[]) AS done (id, fence)
WHERE outbox.id = done.id AND outbox.fence = done.fence
RETURNING 1
""", 2)  # fmt: skip
"""By its fence too: who was buried must not remove a wish that another replica has adopted."""

POSTPONE = "UPDATE outbox SET tries = tries + 1, due_at = $3, error = $4 WHERE id = $1 AND owner = $2"

MINE = f"SELECT {_COLUMNS} FROM outbox WHERE owner = $1 AND due_at <= $2 ORDER BY due_at, fence LIMIT $3"

NEXT_DUE = "SELECT min(due_at) FROM outbox WHERE owner = $1 AND due_at > $2"

ADOPT = """
UPDATE outbox SET owner = $1, fence = nextval('fence')
WHERE id IN (
    SELECT id FROM outbox
    WHERE owner <> $1 AND NOT EXISTS (SELECT FROM replica WHERE replica.epoch = outbox.owner)
    ORDER BY fence LIMIT $2 FOR UPDATE SKIP LOCKED
)
"""
"""Wishes whose owner is over. A new fence, so that agents refuse what the old owner may still say."""

PHASE = {
    "run": "SELECT id, state FROM run WHERE id = ANY ($1::uuid[])",
    "job": "SELECT id, concat_ws(':', state, cleanup) FROM job WHERE id = ANY ($1::uuid[])",
    "instance": "SELECT id, state FROM instance WHERE id = ANY ($1::uuid[])",
    "volume": "SELECT id, state FROM volume WHERE id = ANY ($1::uuid[])",
    "managed_task": """
        SELECT id, concat_ws(':', state, attempt, CASE WHEN launched THEN 'launched' ELSE 'free' END)
        FROM managed_task WHERE id = ANY ($1::uuid[])
    """,
}
"""The phase that a record is in now, written as its `phase` property writes it."""


class NewWish(NamedTuple):
    id: UUID
    kind: str
    target: UUID
    family: UUID
    attempt: int
    phase: str
    effect: str
    payload: str


class Errand(NamedTuple):
    """A wish as its performer gets it."""

    id: UUID
    fence: int
    kind: str
    target: UUID
    family: UUID
    attempt: int
    phase: str
    effect: str
    payload: str
    tries: int


def add(bundle: Bundle, owner: int, wishes: Sequence[NewWish], now: float) -> None:
    bundle.add(ADD, [owner, now, wishes])


def added(answer: Mapping[str, Any], wishes: Sequence[NewWish]) -> list[Errand]:
    """The errands of what `add` wrote: fences are drawn in the order of the wishes."""
    fences: list[int] = answer.get(ADD.name) or []
    return [Errand(wish.id, fence, *wish[1:], tries=0) for wish, fence in zip(wishes, fences, strict=True)]


def remove(bundle: Bundle, done: Sequence[tuple[UUID, int]]) -> None:
    """Each with the fence that its performer had."""
    bundle.add(REMOVE, columns(done))


async def postpone(tx: Connection, id: UUID, owner: int, due_at: float, error: str) -> None:
    await tx.execute(POSTPONE, id, owner, due_at, error[:500])


async def mine(tx: Connection, owner: int, now: float, limit: int) -> list[Errand]:
    return [_read(row) for row in await tx.fetch(MINE, owner, now, limit)]


async def next_due(tx: Connection, owner: int, now: float) -> float | None:
    moment: float | None = await tx.fetchval(NEXT_DUE, owner, now)
    return moment


async def adopt(tx: Connection, owner: int, limit: int) -> int:
    """Take over wishes that nobody owns; returns how many."""
    return int((await tx.execute(ADOPT, owner, limit)).rpartition(" ")[2])


async def current(tx: Connection, errands: Sequence[Errand]) -> set[UUID]:
    """Those whose record is still in the phase in which it wished for them; all of one kind in one question."""
    phases: dict[UUID, str] = {}
    for kind in dict.fromkeys(errand.kind for errand in errands):
        targets = {errand.target for errand in errands if errand.kind == kind}
        phases |= {row[0]: row[1] for row in await tx.fetch(PHASE[kind], list(targets))}
    return {errand.id for errand in errands if phases.get(errand.target) == errand.phase}


def _read(row: Record) -> Errand:
    return Errand(*row.values())
