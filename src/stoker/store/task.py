"""Swarm tasks by the million: stored, opened and cancelled as sets, inside the caller's transaction.

What workers do to them is in `claim.py`, what moves along their edges in `continuation.py`, how they are shown in
`task_list.py`. The meaning of each statement is the table of `core/task.py`; a property test compares the two.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import asyncpg

from stoker.core.errors import Conflict, UserError
from stoker.core.graph import Edge, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import AVAILABLE, INACTIVE, TASK, State, conflict, unknown
from stoker.store import task_kind
from stoker.store.continuation import (
    ADD_CONTINUATIONS,
    REACH,
    REACH_OF_CANCEL,
    STORE_CONTINUATIONS,
    Opened,
    check_edges,
    columns,
    lock,
    release_continuations,
)
from stoker.store.database import Connection
from stoker.store.task_kind import GROUP, LABEL, PROJECT, KindKey

# A B-tree refuses values above 2,704 bytes, in words that no user understands.
REQUESTED_RESOURCES_CHARS: Final = 1000
OPTIONS_CHARS: Final = 2000

STORE_TASKS: Final = """
INSERT INTO task (id, project_id, state, priority, max_retry_count, pending_dependency_count, has_command,
                  kind_id, scopes, keyed, crash_limit, start_at, hold, deadline_at, created_at, entered_at)
SELECT id, $1, state, priority, max_retry_count, pending_dependency_count, has_command, kind_id,
       string_to_array(scopes, ',')::integer[], keyed, crash_limit, start_at,
       CASE WHEN start_at > $2 THEN 'clock' END, deadline_at, $2, $2
FROM unnest($3::uuid[], $4::text[], $5::integer[], $6::integer[], $7::integer[], $8::boolean[], $9::integer[],
            $10::text[], $11::boolean[], $12::integer[], $13::float8[], $14::float8[])
     AS new (id, state, priority, max_retry_count, pending_dependency_count, has_command, kind_id, scopes, keyed,
             crash_limit, start_at, deadline_at)
"""

STORE_SPECS: Final = """
INSERT INTO task_spec (project_id, task_id, name, command, requested_resources, estimated_runtime,
                       max_termination_time, detail, group_name, labels, retry_of, user_name)
SELECT $1, * FROM unnest($2::uuid[], $3::text[], $4::jsonb[], $5::jsonb[], $6::float8[], $7::float8[], $8::jsonb[],
                         $9::text[], $10::jsonb[], $11::uuid[], $12::text[])
"""

SUCCEEDED: Final = """
SELECT id FROM task WHERE id = ANY($1::uuid[]) AND state = 'terminated' AND (exit_status = 0 OR NOT has_command)
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
    WHERE id = ANY($2::uuid[]) AND state IN ('inactive', 'available', 'running')
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
SELECT id FROM task
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


@dataclass(frozen=True, slots=True)
class Draft:
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


class _Row(NamedTuple):
    """What `task` keeps of a draft, while the rest is stored already."""

    state: State | None
    priority: int
    max_retry_count: int
    has_command: bool
    kind_id: int
    scopes: str
    keyed: bool
    crash_limit: int
    start_at: float | None
    deadline_at: float | None


class Cancelled(NamedTuple):
    cancelled: int
    told: list[tuple[WorkerId, Held]]
    """Which worker must be told to stop what; these are pending until it answers or its lease is over."""


class Load:
    """A graph on its way into the database, all or nothing: specifications as they come, tasks when edges are known."""

    def __init__(self, conn: Connection, project: ProjectId, now: float) -> None:
        self._conn, self._project, self._now = conn, project, now
        self._rows: dict[TaskId, _Row] = {}
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
        before = len(self._rows)
        for d, kind, some in zip(drafts, kinds, scopes, strict=True):
            counted = ",".join([str(self._scopes[scope]) for scope in some])
            self._rows[d.id] = _Row(
                d.state, d.priority, d.max_retry_count, d.command is not None, self._kinds[kind], counted,
                d.key is not None, d.crash_limit, d.start_at, d.deadline_at,
            )  # fmt: skip
        if len(self._rows) < before + len(drafts):
            raise UserError("One request names the same task twice.", hint="Give each task an id of its own.")
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

    async def finish(self, edges: Iterable[Edge], after: Iterable[Edge] = ()) -> Opened:
        """`after`: edges from tasks that were there before; those that succeeded need not be waited for."""
        edges = list(dict.fromkeys(edges))
        edges += await self._still_open(list(dict.fromkeys(after)))
        waits_for = Counter(edge.target for edge in edges)
        states = {id: row.state or (INACTIVE if waits_for[id] else AVAILABLE) for id, row in self._rows.items()}
        await check_edges(self._conn, edges, states, self._project)
        passed = [id for id, row in self._rows.items() if states[id] is AVAILABLE and not row.has_command]
        past = set(passed)
        await self._store_tasks(
            {id: "terminated" if id in past else state.value for id, state in states.items()}, waits_for
        )
        inside = [edge for edge in edges if edge.target in self._rows]
        if inside:
            await self._conn.execute(STORE_CONTINUATIONS, *columns(inside))
        if len(inside) < len(edges):
            await self._conn.execute(ADD_CONTINUATIONS, *columns([e for e in edges if e.target not in self._rows]))
        ready = [
            row.kind_id
            for id, row in self._rows.items()
            if states[id] is AVAILABLE and row.has_command and (row.start_at or 0) <= self._now
        ]
        return Opened(len(ready), frozenset(ready)) | await release_continuations(self._conn, passed, self._now)

    async def _still_open(self, after: list[Edge]) -> list[Edge]:
        sources = list({edge.source for edge in after})
        done = {row["id"] for row in await self._conn.fetch(SUCCEEDED, sources)} if sources else set()
        return [edge for edge in after if edge.source not in done]

    async def _store_tasks(self, states: dict[TaskId, str], waits_for: Counter[TaskId]) -> None:
        rows = [
            (id, states[id], row.priority, row.max_retry_count, waits_for[id], row.has_command, row.kind_id, row.scopes,
             row.keyed, row.crash_limit, row.start_at, row.deadline_at)
            for id, row in self._rows.items()
        ]  # fmt: skip
        for first in range(0, len(rows), 5_000):
            await self._conn.execute(
                STORE_TASKS, self._project, self._now, *zip(*rows[first : first + 5_000], strict=True)
            )


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


async def cancel(conn: Connection, ids: Iterable[TaskId], now: float) -> Cancelled:
    """Cancels these and all that waits for them; what runs becomes pending. Unknown and ended ones are skipped."""
    asked = list(dict.fromkeys(ids))
    rows = await lock(conn, asked, REACH_OF_CANCEL, asked, until_closed=True)
    changed = await conn.fetch(CANCEL_TASKS, now, [row["id"] for row in rows])
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


async def overdue(conn: Connection, now: float, most: int) -> list[TaskId]:
    return [row["id"] for row in await conn.fetch(OVERDUE, now, most)]


async def next_moment(conn: Connection) -> float | None:
    """When the first of them may begin, or should have ended."""
    moment: float | None = await conn.fetchval(NEXT_MOMENT)
    return moment


async def set_priority(conn: Connection, id: TaskId, priority: int) -> bool:
    return bool(await conn.fetch(SET_PRIORITY, id, priority))
