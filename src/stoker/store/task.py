"""Swarm tasks by the million: stored, opened and cancelled as sets, inside the caller's transaction.

What workers do to them is in `claim.py`, what moves along their edges in `continuation.py`, how they are shown in
`task_list.py`. The meaning of each statement is the table of `core/task.py`; a property test compares the two.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

import asyncpg

from stoker.core.errors import Conflict, UserError
from stoker.core.graph import Edge, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import AVAILABLE, INACTIVE, TASK, State, conflict, unknown
from stoker.store import task_kind
from stoker.store.continuation import (
    ADD_CONTINUATIONS,
    REACH,
    STORE_CONTINUATIONS,
    Node,
    Opened,
    columns,
    edges_beyond,
    lock,
    lock_ends,
    lock_for_cancel,
    refuse_circles,
    refuse_closed,
    release_continuations,
    states_of,
)
from stoker.store.database import Connection
from stoker.store.many import Many
from stoker.store.task_kind import GROUP, LABEL, PROJECT, KindKey
from stoker.store.turn import PIECE, pieces

# A B-tree refuses values above 2,704 bytes, in words that no user understands.
REQUESTED_RESOURCES_CHARS: Final = 1000
OPTIONS_CHARS: Final = 2000

PLACE: Final = 2**32 - 1

STORE_TASKS: Final = """
INSERT INTO task (id, project_id, state, pending_dependency_count, priority, max_retry_count, has_command,
                  kind_id, scopes, keyed, crash_limit, start_at, hold, deadline_at, created_at, entered_at)
SELECT id, $1, state, pending_dependency_count, priority, max_retry_count, has_command, kind_id,
       string_to_array(scopes, ',')::integer[], keyed, crash_limit, start_at,
       CASE WHEN start_at > $2 THEN 'clock' END, deadline_at, $2, $2
FROM unnest($3::uuid[], $4::text[], $5::integer[], $6::integer[], $7::integer[], $8::boolean[], $9::integer[],
            $10::text[], $11::boolean[], $12::integer[], $13::float8[], $14::float8[])
     AS new (id, state, pending_dependency_count, priority, max_retry_count, has_command, kind_id, scopes, keyed,
             crash_limit, start_at, deadline_at)
"""

STORE_SPECS: Final = """
INSERT INTO task_spec (project_id, task_id, name, command, requested_resources, estimated_runtime,
                       max_termination_time, detail, group_name, labels, retry_of, user_name)
SELECT $1, * FROM unnest($2::uuid[], $3::text[], $4::jsonb[], $5::jsonb[], $6::float8[], $7::float8[], $8::jsonb[],
                         $9::text[], $10::jsonb[], $11::uuid[], $12::text[])
"""

MAKE_AVAILABLE: Final = """
UPDATE task SET state = CASE WHEN has_command THEN 'available' ELSE 'terminated' END, entered_at = $1
WHERE id = ANY($2::uuid[]) AND state = 'inactive' AND pending_dependency_count = 0
RETURNING id, state, kind_id, hold
"""

WAITING_FOR_OTHERS: Final = """
SELECT id, pending_dependency_count FROM task
WHERE id = ANY($1::uuid[]) AND state = 'inactive' AND pending_dependency_count > 0 ORDER BY id LIMIT 1
"""

CANCEL_TASKS: Final = """
WITH cancelled AS (
    UPDATE task SET
        state = CASE state WHEN 'running' THEN 'pending_cancellation' ELSE 'cancelled' END, entered_at = $1, hold = NULL
    WHERE id = ANY((SELECT $2::text::uuid[])::uuid[]) AND state IN ('inactive', 'available', 'running')
    RETURNING id, state, attempt, worker_id
), counted AS (
    SELECT count(*) FILTER (WHERE state = 'cancelled') AS cancelled FROM cancelled
)
SELECT counted.cancelled, told.worker_id, told.id, told.attempt
FROM counted LEFT JOIN cancelled told ON told.state = 'pending_cancellation'
"""

DUE: Final = "SELECT id FROM task WHERE hold = 'clock' AND start_at <= $1 ORDER BY id LIMIT $2 FOR UPDATE SKIP LOCKED"
LET_GO: Final = """
UPDATE task SET hold = NULL WHERE id = ANY($1::uuid[]) AND hold IS NOT NULL RETURNING state, kind_id, project_id
"""

OVERDUE: Final = """
SELECT project_id, id FROM task
WHERE deadline_at IS NOT NULL AND deadline_at <= $1 AND state IN ('inactive', 'available', 'running')
ORDER BY deadline_at LIMIT $2
"""

NEXT_MOMENT: Final = """
SELECT least(
    (SELECT min(start_at) FROM task WHERE hold = 'clock'),
    (SELECT min(deadline_at) FROM task
     WHERE deadline_at IS NOT NULL AND state IN ('inactive', 'available', 'running'))
)
"""

SET_PRIORITY: Final = """
UPDATE task SET priority = $2 WHERE id = $1 AND state IN ('inactive', 'available') RETURNING id
"""


class Draft(NamedTuple):
    """A task as it is wanted. Texts that are JSON are passed on unread; no `state`: available unless it waits."""

    id: TaskId
    project: ProjectId
    state: State | None = AVAILABLE
    name: str = ""
    command: str | None = None
    requested_resources: str = "{}"
    alternatives: tuple[str, ...] = ()
    estimated_runtime: float | None = None
    max_termination_time: float = 10.0
    max_retry_count: int = 1
    crash_limit: int = 5
    priority: int = 0
    group: str | None = None
    labels: str = "{}"
    label_names: tuple[str, ...] = ()
    """As `key=value`: the scopes it counts in."""
    key: str | None = None
    start_at: float | None = None
    deadline_at: float | None = None
    retry_of: TaskId | None = None
    user: str = ""
    detail: str = "{}"

    @property
    def kind(self) -> KindKey:
        options = task_kind.options_text((self.requested_resources, *self.alternatives))
        return KindKey(options, task_kind.at_least(self.estimated_runtime), self.group or "", self.key or "")

    @property
    def scopes(self) -> list[tuple[str, str]]:
        group = [(GROUP, self.group)] if self.group else []
        return [(PROJECT, ""), *group, *((LABEL, name) for name in self.label_names)]


class Cancelled(NamedTuple):
    cancelled: int
    told: list[tuple[WorkerId, Held]]
    """Which worker must be told to stop what; these are pending until it answers or its lease is over."""


class Load:
    """A graph on its way into the database, all or nothing: specifications as they come, tasks when edges are known.

    A graph may have a million tasks, and others have questions meanwhile. So nothing here goes through all of them in
    one go, and what is kept of each is no more than the garbage collector has to walk: a tuple of plain values for a
    task, and a number for an edge among them, the places of its two ends.
    """

    def __init__(self, conn: Connection, project: ProjectId, now: float) -> None:
        self._conn, self._project, self._now = conn, project, now
        self._places: dict[TaskId, int] = {}
        self._ids: list[TaskId] = []
        self._rows: list[tuple[Any, ...]] = []
        """State, then what else `STORE_TASKS` takes of each, but for its id and how many it waits for."""
        self._waits_for: list[int] = []
        self._inside: dict[int, None] = {}
        self._outside: dict[Edge, None] = {}
        """Edges from or to tasks that were there before."""
        self._may_have_circles = False
        """Not where each edge leads to a later task, as in most graphs."""
        self._has_barriers = False
        self._kinds: dict[KindKey, int] = {}
        self._scopes: dict[tuple[str, str], int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    async def add(self, drafts: Sequence[Draft]) -> None:
        _check(drafts, self._project)
        kinds, scopes = [draft.kind for draft in drafts], [draft.scopes for draft in drafts]
        if new_kinds := set(kinds) - self._kinds.keys():
            self._kinds |= await task_kind.kind_ids(self._conn, self._project, new_kinds)
        if new_scopes := {scope for some in scopes for scope in some} - self._scopes.keys():
            self._scopes |= await task_kind.scope_ids(self._conn, self._project, new_scopes)
        for d, kind, some in zip(drafts, kinds, scopes, strict=True):
            counted = ",".join([str(self._scopes[scope]) for scope in some])
            self._places[d.id] = len(self._ids)
            self._ids.append(d.id)
            self._rows.append((
                d.state and d.state.value, d.priority, d.max_retry_count, d.command is not None, self._kinds[kind],
                counted, d.key is not None, d.crash_limit, d.start_at, d.deadline_at,
            ))  # fmt: skip
            self._has_barriers |= d.command is None
        if len(self._places) < len(self._ids):
            raise UserError("One request names the same task twice.", hint="Give each task an id of its own.")
        self._waits_for += [0] * len(drafts)
        await self._store_specs(drafts)

    async def _store_specs(self, drafts: Sequence[Draft]) -> None:
        specs = [
            (d.id, d.name, d.command, d.requested_resources, d.estimated_runtime, d.max_termination_time, d.detail,
             d.group, d.labels, d.retry_of, d.user)
            for d in drafts
        ]  # fmt: skip
        try:
            await self._conn.execute(STORE_SPECS, self._project, *zip(*specs, strict=True))
        except asyncpg.UniqueViolationError as error:
            raise Conflict("One of these tasks exists already.", hint="Nothing was stored; use fresh ids.") from error

    async def finish(self, edges: Iterable[Edge], *, forgiving: bool = False) -> Opened:
        """`forgiving`: a task that was there before and has succeeded need not be waited for, and is no mistake."""
        async for some in pieces(edges):
            self._link(some)
        beyond = await self._lock_outside(forgiving=forgiving) if self._outside else []
        if self._may_have_circles:
            await refuse_circles(chain(self._ends(), map(self._placed, chain(self._outside, beyond))), self._ids)
        opened, passed = await self._store_tasks()
        async for keys in pieces(self._inside):
            sources, targets = [self._ids[key >> 32] for key in keys], [self._ids[key & PLACE] for key in keys]
            await self._conn.execute(STORE_CONTINUATIONS, sources, targets)
        async for some in pieces(self._outside):
            await self._conn.execute(STORE_CONTINUATIONS, *columns([e for e in some if e.target in self._places]))
            await self._conn.execute(ADD_CONTINUATIONS, *columns([e for e in some if e.target not in self._places]))
        return opened | await release_continuations(self._conn, passed, self._now)

    def _link(self, edges: Iterable[Edge]) -> None:
        for edge in edges:
            source, target = self._places.get(edge.source), self._places.get(edge.target)
            if source is None or target is None:
                self._outside[edge] = None
            elif (key := source << 32 | target) not in self._inside:
                self._inside[key] = None
                self._waits_for[target] += 1
                self._may_have_circles |= source >= target

    async def _lock_outside(self, *, forgiving: bool) -> list[Edge]:
        """Holds the tasks that were there before. Returns what leads on from those that wait for new ones, if new ones
        wait for old ones too, since a circle may go through both."""
        sources = {edge.source for edge in self._outside} - self._places.keys()
        targets = {edge.target for edge in self._outside} - self._places.keys()
        passing = targets if self._has_barriers else ()
        rows = await lock_ends(self._conn, sources, targets, passing, self._project)
        if forgiving and (done := {id for id in sources if rows[id]["succeeded"]}):
            self._outside = {edge: None for edge in self._outside if edge.source not in done}
        fresh = dict.fromkeys(self._places.keys() & {end for edge in self._outside for end in edge}, INACTIVE)
        refuse_closed(self._outside, fresh | states_of(rows.values()))
        for _, target in self._outside:
            if (place := self._places.get(target)) is not None:
                self._waits_for[place] += 1
        if not sources or not targets:
            return []
        self._may_have_circles = True
        return await edges_beyond(self._conn, targets)

    def _ends(self) -> Iterator[tuple[int, int]]:
        return ((key >> 32, key & PLACE) for key in self._inside)

    def _placed(self, edge: Edge) -> tuple[Node, Node]:
        return self._places.get(edge.source, edge.source), self._places.get(edge.target, edge.target)

    async def _store_tasks(self) -> tuple[Opened, list[TaskId]]:
        """What can be claimed, and which barriers pass at once."""
        count, kinds, passed = 0, set[int](), list[TaskId]()
        for first in range(0, len(self._rows), PIECE):
            ids, waits_for = self._ids[first : first + PIECE], self._waits_for[first : first + PIECE]
            wishes, *others = zip(*self._rows[first : first + PIECE], strict=True)
            _, _, has_command, kind_ids, _, _, _, start_at, _ = others
            states = []
            for id, wish, waits, runs, kind, start in zip(
                ids, wishes, waits_for, has_command, kind_ids, start_at, strict=True
            ):
                if wish == "available" and waits:
                    raise conflict(id, AVAILABLE, "only an inactive task can be a continuation")
                if (wish or ("inactive" if waits else "available")) == "inactive":
                    states.append("inactive")
                elif not runs:
                    states.append("terminated")
                    passed.append(id)
                else:
                    states.append("available")
                    if (start or 0) <= self._now:
                        count += 1
                        kinds.add(kind)
            await self._conn.execute(STORE_TASKS, self._project, self._now, ids, states, waits_for, *others)
        return Opened(count, frozenset(kinds)), passed


def _check(drafts: Iterable[Draft], project: ProjectId) -> None:
    for draft in drafts:
        if draft.state is not None and draft.state not in TASK.initial:
            raise conflict(draft.id, draft.state, "a new task is inactive or available")
        asked = draft.requested_resources
        if len(asked) > REQUESTED_RESOURCES_CHARS or sum(map(len, draft.alternatives)) + len(asked) > OPTIONS_CHARS:
            raise UserError(
                f"Task {draft.id} asks for resources in more than {REQUESTED_RESOURCES_CHARS} characters.",
                hint="Name fewer resources, or give them shorter names.",
            )
        if draft.project != project:
            raise UserError("These tasks belong to different projects.", hint="Create them project by project.")


async def create(conn: Connection, drafts: Collection[Draft], edges: Iterable[Edge], now: float) -> Opened:
    """Stores a whole graph or nothing."""
    drafts = list(drafts)
    if not drafts:
        return Opened()
    load = Load(conn, drafts[0].project, now)
    await load.add(drafts)
    return await load.finish(edges)


async def make_available(conn: Connection, ids: Iterable[TaskId], now: float) -> Opened:
    """A user opens inactive tasks that wait for nobody; all of them or none."""
    wanted = list(dict.fromkeys(ids))
    rows = {row["id"]: row for row in await lock(conn, wanted, REACH, wanted, [False] * len(wanted))}
    if missing := set(wanted) - rows.keys():
        raise unknown(missing)
    for id in wanted:
        if (state := State(rows[id]["state"])) is not INACTIVE:
            raise conflict(id, state, "only an inactive task is made available")
    if blocked := await conn.fetchrow(WAITING_FOR_OTHERS, wanted):
        raise conflict(blocked["id"], INACTIVE, f"it waits for {blocked['pending_dependency_count']} other tasks")
    opened = await conn.fetch(MAKE_AVAILABLE, now, wanted)
    passed = [row["id"] for row in opened if row["state"] == "terminated"]
    ready = [row["kind_id"] for row in opened if row["state"] != "terminated" and row["hold"] is None]
    return Opened(len(ready), frozenset(ready)) | await release_continuations(conn, passed, now)


async def cancel(conn: Connection, ids: Iterable[TaskId] | Many, now: float) -> Cancelled:
    """Cancels these and all that waits for them; what runs becomes pending. Unknown and ended ones are skipped."""
    asked = ids if isinstance(ids, Many) else Many.of(ids)
    changed = await conn.fetch(CANCEL_TASKS, now, await lock_for_cancel(conn, asked))
    told = [(row["worker_id"], Held(row["id"], row["attempt"])) for row in changed if row["id"] is not None]
    return Cancelled(changed[0]["cancelled"], told)


async def let_go(conn: Connection, ids: Collection[TaskId]) -> Opened:
    """These may be claimed again, whatever held them."""
    rows = await conn.fetch(LET_GO, list(ids))
    ready = [row["kind_id"] for row in rows if row["state"] == "available"]
    return Opened(len(ready), frozenset(ready))


async def begin_due(conn: Connection, now: float, most: int) -> tuple[int, Opened]:
    """Those whose time has come may be claimed."""
    ids = [row["id"] for row in await conn.fetch(DUE, now, most)]
    return len(ids), await let_go(conn, ids) if ids else Opened()


async def overdue(conn: Connection, now: float, most: int) -> dict[ProjectId, list[TaskId]]:
    late: dict[ProjectId, list[TaskId]] = {}
    for project, id in await conn.fetch(OVERDUE, now, most):
        late.setdefault(project, []).append(id)
    return late


async def next_moment(conn: Connection) -> float | None:
    """When the first of them may begin, or should have ended."""
    moment: float | None = await conn.fetchval(NEXT_MOMENT)
    return moment


async def set_priority(conn: Connection, id: TaskId, priority: int) -> bool:
    return bool(await conn.fetch(SET_PRIORITY, id, priority))
