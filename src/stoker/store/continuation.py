"""The edges between swarm tasks: who waits for whom, and what moves along them when a task ends.

Theory of operation. Whoever changes a task or its edges holds its row. A change may travel: a success opens
continuations, and barriers pass it on; a failure or a cancellation reaches every descendant. So a caller first
reads, without locks, which tasks it may touch, then locks all of them in the order of their ids, and reads again:
adding an edge needs the lock of its source, so once the second reading finds nothing new the set cannot grow.
A cancellation reads as long as two readings differ, so that what somebody claimed meanwhile is told to its worker and
leaves alone what waits for it.
Only an edge added between the two readings makes a caller lock out of order; should two such callers meet,
PostgreSQL ends one of them and its transaction is tried again.

A cycle may be closed by two requests of which neither sees the other, so those that name an existing inactive task
as source take turns (`GRAPH_LOCK`, before any row). Tasks in other states cannot lie on a cycle: what leads to an
inactive task is open, what an inactive task leads to is inactive or cancelled.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final
from uuid import UUID

from stoker.core.errors import NotFound, UserError
from stoker.core.graph import Edge, knots, refuse_cycle
from stoker.core.ids import TaskId
from stoker.core.task import INACTIVE, OPEN_TO_EDGES, State, conflict, unknown
from stoker.store.database import Connection, Record
from stoker.store.many import Many
from stoker.store.turn import in_turns


@dataclass(frozen=True, slots=True)
class Opened:
    """How many tasks can be claimed because of something, and of which kinds: whoever waits for such is told."""

    count: int = 0
    kinds: frozenset[int] = frozenset()

    def __or__(self, other: "Opened") -> "Opened":
        return Opened(self.count + other.count, self.kinds | other.kinds)


Node = TaskId | int

GRAPH_LOCK: Final = 0x7461_736B_6564_6765

# A cached plan is as old as its connection: one that was made for empty tables reads all of them when a million tasks
# have come. Planning costs a fraction of a millisecond for each statement, and these statements carry whole sets.
PLAN_AFRESH: Final = "SET LOCAL plan_cache_mode = force_custom_plan"

LOCK_TASKS: Final = """
SELECT id, state, project_id, state = 'terminated' AND (exit_status = 0 OR NOT has_command) AS succeeded
FROM task WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE
"""

# One step along the edges. OFFSET 0 keeps it what it says, two look-ups by key for each task: left to itself the
# planner starts from all inactive tasks when it believes that they are few.
_WAITING_AFTER: Final = """
        SELECT t.id, t.has_command
        FROM (SELECT target FROM continuation WHERE source = here.id OFFSET 0) c
        CROSS JOIN LATERAL (SELECT id, has_command, state FROM task WHERE id = c.target OFFSET 0) t
        WHERE t.state = 'inactive'
    """

# Deep: every descendant that still waits. Otherwise: the continuations, and beyond them what barriers pass on.
REACH: Final = f"""
WITH RECURSIVE reach (id, deep, onward) AS (
    SELECT id, deep, true FROM unnest($1::uuid[], $2::boolean[]) AS start (id, deep)
  UNION
    SELECT t.id, here.deep, here.deep OR NOT t.has_command
    FROM reach here CROSS JOIN LATERAL ({_WAITING_AFTER}) t WHERE here.onward
)
SELECT DISTINCT id FROM reach
"""

# What of the asked can be cancelled, and all that waits for what of it does not run. Mostly the asked are a whole
# graph: edges within it lead to nothing new, and cost no look at their targets.
REACH_OF_CANCEL: Final = f"""
WITH RECURSIVE asked AS MATERIALIZED (
    SELECT id, state FROM task
    WHERE id = ANY((SELECT $1::text::uuid[])::uuid[]) AND state IN ('inactive', 'available', 'running')
), reach (id) AS (
    SELECT id FROM asked WHERE state <> 'running'
  UNION
    SELECT t.id FROM reach here
    CROSS JOIN LATERAL ({_WAITING_AFTER} AND c.target NOT IN (SELECT id FROM asked)) t
)
SELECT coalesce(array_agg(id ORDER BY id), '{{}}')::text
FROM (SELECT id FROM reach UNION ALL SELECT id FROM asked WHERE state = 'running') AS wanted
"""

LOCK_MANY: Final = """
SELECT count(*) FROM (
    SELECT FROM task WHERE id = ANY((SELECT $1::text::uuid[])::uuid[]) ORDER BY id FOR NO KEY UPDATE
) AS held
"""

# Expects `released (target, n)`: how many dependencies each of them is rid of. A cancelled one is left alone.
_RELEASE: Final = """,
opened AS (
    UPDATE task SET
        pending_dependency_count = pending_dependency_count - n,
        state = CASE
            WHEN pending_dependency_count > n THEN 'inactive'
            WHEN has_command THEN 'available'
            ELSE 'terminated'
        END,
        entered_at = CASE WHEN pending_dependency_count > n THEN entered_at ELSE $1 END
    FROM released WHERE id = target AND state = 'inactive'
    RETURNING id, state, kind_id, hold
)
SELECT id, state, kind_id, hold FROM opened WHERE state <> 'inactive'
"""

RELEASE_CONTINUATIONS: Final = (
    """
WITH released AS (
    SELECT target, count(*)::integer AS n FROM continuation WHERE source = ANY($2::uuid[]) GROUP BY target
)"""
    + _RELEASE
)

REMOVE_CONTINUATIONS: Final = (
    """
WITH removed AS (
    DELETE FROM continuation c USING unnest($2::uuid[], $3::uuid[]) AS unwanted (source, target)
    WHERE c.source = unwanted.source AND c.target = unwanted.target
    RETURNING c.target
), released AS (
    SELECT target, count(*)::integer AS n FROM removed GROUP BY target
)"""
    + _RELEASE
)

CANCEL_CONTINUATIONS: Final = f"""
WITH RECURSIVE doomed (id) AS (
    SELECT unnest($2::uuid[])
  UNION
    SELECT t.id FROM doomed here CROSS JOIN LATERAL ({_WAITING_AFTER}) t
)
UPDATE task SET state = 'cancelled', entered_at = $1, hold = NULL
FROM doomed WHERE task.id = doomed.id AND state = 'inactive'
"""

STORE_CONTINUATIONS: Final = """
INSERT INTO continuation (source, target) SELECT * FROM unnest($1::uuid[], $2::uuid[])
"""

ADD_CONTINUATIONS: Final = """
WITH added AS (
    INSERT INTO continuation (source, target) SELECT * FROM unnest($1::uuid[], $2::uuid[])
    ON CONFLICT DO NOTHING RETURNING target
), acquired AS (
    SELECT target, count(*)::integer AS n FROM added GROUP BY target
)
UPDATE task SET pending_dependency_count = pending_dependency_count + n FROM acquired WHERE id = target
"""

MAY_CLOSE_A_CYCLE: Final = """
SELECT count(*) FILTER (WHERE state <> 'inactive') < cardinality($1::uuid[]) FROM task WHERE id = ANY($1::uuid[])
"""

EDGES_BEYOND: Final = f"""
WITH RECURSIVE beyond (id) AS (
    SELECT unnest($1::uuid[])
  UNION
    SELECT t.id FROM beyond here CROSS JOIN LATERAL ({_WAITING_AFTER}) t
)
SELECT c.source, c.target FROM beyond b JOIN continuation c ON c.source = b.id
"""

KNOWN_EDGES: Final = """
SELECT c.source, c.target
FROM continuation c JOIN unnest($1::uuid[], $2::uuid[]) AS named (source, target) USING (source, target)
"""


async def add_continuations(conn: Connection, edges: Iterable[Edge]) -> None:
    """Makes each target wait for its source. An edge that is there already is left as it is."""
    edges = list(dict.fromkeys(edges))
    sources, targets = {edge.source for edge in edges}, {edge.target for edge in edges}
    states = states_of((await lock_ends(conn, sources, targets)).values())
    refuse_closed(edges, states)
    waiting = [edge for edge in edges if states[edge.source] is INACTIVE]
    await refuse_circles(chain(waiting, await edges_beyond(conn, targets) if waiting else ()))
    await conn.execute(ADD_CONTINUATIONS, *columns(edges))


async def remove_continuations(conn: Connection, edges: Iterable[Edge], now: float) -> Opened:
    """The targets do not wait for these sources any more."""
    edges = list(dict.fromkeys(edges))
    targets = {edge.target for edge in edges}
    ends = targets | {edge.source for edge in edges}
    states = states_of(await lock(conn, ends, REACH, list(targets), [False] * len(targets)))
    if missing := ends - states.keys():
        raise unknown(missing)
    known = {Edge(*row) for row in await conn.fetch(KNOWN_EDGES, *columns(edges))}
    for edge in edges:
        if edge not in known:
            raise NotFound(f"Task {edge.source} has no continuation {edge.target}.", hint="It may be removed already.")
    refuse_closed(edges, states)
    return await _onward(conn, await conn.fetch(REMOVE_CONTINUATIONS, now, *columns(edges)), now)


async def lock_ends(
    conn: Connection,
    sources: Collection[TaskId],
    targets: Collection[TaskId],
    passing: Collection[TaskId] = (),
    project: UUID | None = None,
) -> dict[TaskId, Record]:
    """Locks the existing ends of new edges, and what those of them reach that a success may pass through at once."""
    # A task never becomes inactive again, so this answer cannot turn into yes before the rows are locked.
    if sources and await conn.fetchval(MAY_CLOSE_A_CYCLE, list(sources)):
        await conn.execute("SELECT pg_advisory_xact_lock($1)", GRAPH_LOCK)
    ends = {*sources, *targets}
    rows = {TaskId(row["id"]): row for row in await lock(conn, ends, REACH, list(passing), [False] * len(passing))}
    if missing := ends - rows.keys():
        raise unknown(missing)
    if len({row["project_id"] for row in rows.values()} | ({project} if project else set())) > 1:
        raise UserError("These tasks belong to different projects.", hint="Continuations stay inside one project.")
    return rows


async def edges_beyond(conn: Connection, targets: Collection[TaskId]) -> list[Edge]:
    """All that lead on from these, as far as tasks wait."""
    return [Edge(*row) for row in await conn.fetch(EDGES_BEYOND, list(targets))]


async def refuse_circles(edges: Iterable[tuple[Node, Node]], ids: Sequence[TaskId] = ()) -> None:
    """An end that is a number is a place in `ids`."""
    if left := await in_turns(knots(edges)):
        named = [Edge(*(ids[end] if isinstance(end, int) else end for end in edge)) for edge in left]
        # In a thread: what hangs on a circle may be a hundred thousand, and this goes through all of them.
        await asyncio.to_thread(refuse_cycle, named)


def refuse_closed(edges: Iterable[Edge], states: Mapping[TaskId, State]) -> None:
    for source, target in edges:
        if states[target] is not INACTIVE:
            raise conflict(target, states[target], "only an inactive task can be a continuation")
        if states[source] not in OPEN_TO_EDGES:
            raise conflict(source, states[source], "its continuations cannot be changed any more")


async def lock(
    conn: Connection, ids: Iterable[TaskId], reach: str, *args: object, until_closed: bool = False
) -> list[Record]:
    """Locks the tasks and what they reach. A final failure needs the closed set; a release is exact without it."""
    await conn.execute(PLAN_AFRESH)
    ids = set(ids)
    wanted = ids | {row[0] for row in await conn.fetch(reach, *args)}
    locked: set[UUID] = set()
    rows: list[Record] = []
    while not wanted <= locked:
        locked |= wanted
        rows = await conn.fetch(LOCK_TASKS, list(locked))
        if until_closed:
            wanted = ids | {row[0] for row in await conn.fetch(reach, *args)}
    # What was within reach a moment ago may be locked too, but is none of the caller's business any more.
    return [row for row in rows if row[0] in wanted]


async def lock_for_cancel(conn: Connection, asked: Many) -> str:
    """Locks what is to be cancelled, and names it: the text of an array."""
    await conn.execute(PLAN_AFRESH)
    wanted: str = await conn.fetchval(REACH_OF_CANCEL, asked.text)
    while True:
        await conn.execute(LOCK_MANY, wanted)
        locked, wanted = wanted, await conn.fetchval(REACH_OF_CANCEL, asked.text)
        if wanted == locked:
            return locked


async def release_continuations(conn: Connection, sources: Iterable[TaskId], now: float) -> Opened:
    """These tasks succeeded, and their rows are held."""
    sources = list(sources)
    if not sources:
        return Opened()
    return await _onward(conn, await conn.fetch(RELEASE_CONTINUATIONS, now, sources), now)


async def cancel_continuations(conn: Connection, sources: Iterable[TaskId], now: float) -> None:
    """These tasks failed or were cancelled, and the rows of all that they reach are held."""
    if sources := list(sources):
        await conn.execute(CANCEL_CONTINUATIONS, now, sources)


async def _onward(conn: Connection, opened: list[Record], now: float) -> Opened:
    """Barriers among what was opened have passed already and open their own continuations, round after round."""
    count, kinds = 0, set[int]()
    while opened:
        passed = [row["id"] for row in opened if row["state"] == "terminated"]
        ready = [row["kind_id"] for row in opened if row["state"] != "terminated" and row["hold"] is None]
        count += len(ready)
        kinds.update(ready)
        opened = await conn.fetch(RELEASE_CONTINUATIONS, now, passed) if passed else []
    return Opened(count, frozenset(kinds))


def states_of(rows: Iterable[Record]) -> dict[TaskId, State]:
    return {TaskId(row["id"]): State(row["state"]) for row in rows}


def columns(edges: Iterable[Edge]) -> tuple[list[TaskId], list[TaskId]]:
    return [source for source, _ in edges], [target for _, target in edges]
