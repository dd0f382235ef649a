"""How swarm tasks are handed out: candidates of the kinds that fit are locked, the plan of `core/fit.py` divides them
among the workers that ask, and those are theirs. All of it runs inside the caller's transaction, and a claim never
waits for a task that somebody else holds.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from stoker.core.fit import Amounts, Asker, Candidate, Kind, Room, plan_claims
from stoker.core.graph import Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import State
from stoker.store import task_kind
from stoker.store.database import Connection
from stoker.store.task_kind import Stored

MOST_CANDIDATES: Final = 4_000
"""Of one kind, in one round."""
MOST_SPANS: Final = 8
"""Of one kind, in one round: how many different times left are looked at by themselves."""

# Of each kind its most urgent ones, by the index.
CANDIDATES: Final = """
SELECT t.id, t.kind_id, t.entered_at FROM unnest($2::integer[]) AS wanted (kind_id) CROSS JOIN LATERAL (
    SELECT id, kind_id, priority, entered_at FROM task
    WHERE project_id = $1 AND kind_id = wanted.kind_id AND state = 'available' AND hold IS NULL
    ORDER BY priority DESC, id LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED
) t
ORDER BY t.priority DESC, t.id
"""

# The same where workers have little time left: of each kind also the most urgent ones that last no longer.
SHORT_CANDIDATES: Final = """
SELECT t.id, t.kind_id, t.entered_at, t.lasts_s
FROM unnest($2::integer[], $4::float8[]) AS wanted (kind_id, at_most_s) CROSS JOIN LATERAL (
    SELECT o.id, o.kind_id, o.priority, o.entered_at, coalesce(s.estimated_runtime, 0) AS lasts_s
    FROM task o JOIN task_spec s ON s.task_id = o.id
    WHERE o.project_id = $1 AND o.kind_id = wanted.kind_id AND o.state = 'available' AND o.hold IS NULL
      AND (s.estimated_runtime <= at_most_s) IS NOT FALSE
    ORDER BY o.priority DESC, o.id LIMIT $3 FOR NO KEY UPDATE OF o SKIP LOCKED
) t
ORDER BY t.priority DESC, t.id
"""

# A round that had to wait for the commit that lost a task would begin it, by its own clock, before that.
TAKE: Final = """
WITH taken AS (
    UPDATE task t SET state = 'running', entered_at = greatest(t.entered_at, $1), worker_id = given.worker_id,
                      claim = given.claim, attempt = attempt + 1, retry_count = retry_count + 1
    FROM unnest($2::uuid[], $3::uuid[], $4::integer[], $5::float8[]) AS given (id, worker_id, claim, waited_s)
    WHERE t.id = given.id AND t.state = 'available'
    RETURNING t.id, t.attempt, t.worker_id, t.entered_at, t.scopes, t.retry_count, given.waited_s
), recorded AS (
    INSERT INTO execution (task_id, attempt, worker_id, claimed_at) SELECT id, attempt, worker_id, entered_at FROM taken
), measured AS (
    INSERT INTO task_delta (scope, measure, bucket, n, total)
    SELECT scope, measure, bucket, count(*), sum(value)
    FROM taken CROSS JOIN LATERAL unnest(scopes) AS scope CROSS JOIN LATERAL (VALUES
        (2, task_bucket(waited_s), waited_s), (8, CASE WHEN retry_count > 1 THEN 0 END, 0)
    ) AS figure (measure, bucket, value)
    WHERE bucket IS NOT NULL GROUP BY 1, 2, 3
)
SELECT t.id, t.attempt, s.name, s.command, s.requested_resources, s.estimated_runtime, s.max_termination_time, s.detail
FROM taken t JOIN task_spec s ON s.task_id = t.id
"""


class Work(NamedTuple):
    """One attempt, and all that its worker needs; `command`, `requested_resources` and `detail` are JSON text."""

    held: Held
    name: str
    command: str
    requested_resources: str
    estimated_runtime: float | None
    max_termination_time: float
    detail: str

    def to_json(self) -> str:
        """As `wire.worker.Work` reads it."""
        return (
            f'{{"id":"{self.held.task}","attempt":{self.held.attempt},"name":{json.dumps(self.name)},'
            f'"command":{self.command},"requested_resources":{self.requested_resources},'
            f'"estimated_runtime":{"null" if self.estimated_runtime is None else self.estimated_runtime},'
            f'"max_termination_time":{self.max_termination_time},"detail":{self.detail}}}'
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """A worker's claim: `number` is its own, one higher each time."""

    worker: WorkerId
    number: int
    asker: Asker
    time_left_s: float | None = None

    @staticmethod
    def anything(worker: WorkerId, number: int, most: int) -> "Ask":
        """Whoever says nothing of what it has takes whatever there is."""
        return Ask(worker, number, Asker(ENDLESS, ENDLESS, most))


class _Endless(Room):
    def fits(self, wanted: Amounts) -> bool:
        return True

    def without(self, wanted: Amounts) -> Room:
        return self


ENDLESS: Final = _Endless()


class Found(NamedTuple):
    works: list[list[Work]]
    """For each who asked, in the order in which they are to be begun."""
    empty: frozenset[int]
    """Kinds of which nothing is left that could be handed out."""


async def claim(
    conn: Connection, project: ProjectId, asks: Sequence[Ask], kinds: Mapping[int, Stored], now: float
) -> Found:
    """Hands out what there is of these kinds. The workers are known and their leases renewed."""
    spans = {id: found for id, stored in kinds.items() if (found := _spans(asks, stored))}
    most = min(MOST_CANDIDATES, sum(ask.asker.most for ask in asks))
    if not spans or not most:
        return Found([[] for _ in asks], frozenset())
    candidates = await _candidates(conn, project, spans, kinds, most, now)
    seen = {one.kind for one in candidates}
    empty = frozenset(id for id, found in spans.items() if None in found and id not in seen)
    fitting = {id: kinds[id].kind for id in spans}
    left = await _left(conn, project, {id: fitting[id] for id in seen})
    askers = [replace(ask.asker, time_left_s=ask.time_left_s) for ask in asks]
    plan = plan_claims(askers, candidates, fitting, left)
    return Found(await _take(conn, asks, plan, now), empty)


def _spans(asks: Sequence[Ask], stored: Stored) -> list[float | None]:
    """How long what is offered of this kind may last; None: as long as it likes. Empty: it is for none of them.

    Only who has less time left than some tasks of the kind need must have them looked at one by one.
    """
    times = [ask.time_left_s for ask in asks if _could(ask, stored)]
    close = sorted({left for left in times if left is not None and left < 2 * stored.at_least_s})
    anything = any(left is None or left >= 2 * stored.at_least_s for left in times)
    return [*([None] if anything else []), *close[:: max(1, -(-len(close) // MOST_SPANS))]]


def _could(ask: Ask, stored: Stored) -> bool:
    in_time = ask.time_left_s is None or stored.at_least_s <= ask.time_left_s
    return in_time and ask.asker.could(stored.kind)


async def _candidates(
    conn: Connection,
    project: ProjectId,
    spans: Mapping[int, Sequence[float | None]],
    kinds: Mapping[int, Stored],
    most: int,
    now: float,
) -> list[Candidate]:
    if all(found == [None] for found in spans.values()):
        rows = await conn.fetch(CANDIDATES, project, list(spans), most)
        # Whoever takes of this kind has time for the longest of it.
        return [Candidate(id, kind, now - entered, 2 * kinds[kind].at_least_s) for id, kind, entered in rows]
    looks = [(id, at_most_s) for id, found in spans.items() for at_most_s in found]
    rows = await conn.fetch(
        SHORT_CANDIDATES, project, [id for id, _ in looks], most, [at_most_s for _, at_most_s in looks]
    )
    return list({row[0]: Candidate(row[0], row[1], now - row[2], row[3]) for row in rows}.values())


async def _left(conn: Connection, project: ProjectId, kinds: Mapping[int, Kind]) -> dict[str, int]:
    keys: Collection[str] = {kind.key for kind in kinds.values() if kind.key is not None}
    return await task_kind.keys_left(conn, project, keys) if keys else {}


async def _take(
    conn: Connection, asks: Sequence[Ask], plan: Sequence[Sequence[Candidate]], now: float
) -> list[list[Work]]:
    given = [(one, ask) for ask, some in zip(asks, plan, strict=True) for one in some]
    if not given:
        return [[] for _ in asks]
    rows = await conn.fetch(
        TAKE,
        now,
        [one.task for one, _ in given],
        [ask.worker for _, ask in given],
        [ask.number for _, ask in given],
        [max(0.0, one.waited_s) for one, _ in given],
    )
    works = {row[0]: Work(Held(row[0], row[1]), *row[2:]) for row in rows}
    return [[works[one.task] for one in some if one.task in works] for some in plan]


ONE: Final = """
SELECT state, hold, has_command, kind_id, keyed, entered_at FROM task WHERE id = $1 AND project_id = $2
FOR NO KEY UPDATE
"""


async def take_one(
    conn: Connection, project: ProjectId, worker: WorkerId, id: TaskId, kinds: Mapping[int, Stored], now: float
) -> Work | State | None:
    """The task that a worker has chosen itself; the state it is in where somebody was first; None: there is no such."""
    row = await conn.fetchrow(ONE, id, project)
    if row is None:
        return None
    key = kinds[row["kind_id"]].kind.key if row["keyed"] else None
    busy = key is not None and (await task_kind.keys_left(conn, project, [key])).get(key, 0) <= 0
    if row["state"] != "available" or row["hold"] is not None or busy:
        return State(row["state"])
    plan = [[Candidate(id, row["kind_id"], now - row["entered_at"])]]
    ((work,),) = await _take(conn, [Ask.anything(worker, 0, 1)], plan, now)
    return work
