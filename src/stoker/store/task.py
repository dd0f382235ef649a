"""Swarm tasks by the million: stored, opened and cancelled as sets, inside the caller's transaction.

What workers do to them is in `claim.py`, what moves along their edges in `continuation.py`. The meaning of each
statement is the table of `core/task.py`; a property test compares the two.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import asyncpg

from stoker.core.errors import Conflict, UserError
from stoker.core.graph import Edge, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import AVAILABLE, INACTIVE, TASK, State, conflict, unknown
from stoker.store.continuation import (
    ADD_CONTINUATIONS,
    REACH,
    REACH_OF_CANCEL,
    STORE_CONTINUATIONS,
    check_edges,
    columns,
    lock,
    release_continuations,
)
from stoker.store.database import Connection

# A B-tree refuses values above 2,704 bytes, in words that no user understands.
REQUESTED_RESOURCES_CHARS: Final = 1000

STORE_TASKS: Final = """
INSERT INTO task (id, project_id, state, priority, max_retry_count, pending_dependency_count, has_command,
                  created_at, entered_at)
SELECT id, $1, state, priority, max_retry_count, pending_dependency_count, has_command, $2, $2
FROM unnest($3::uuid[], $4::text[], $5::integer[], $6::integer[], $7::integer[], $8::boolean[])
     AS new (id, state, priority, max_retry_count, pending_dependency_count, has_command)
"""

STORE_SPECS: Final = """
INSERT INTO task_spec (task_id, name, command, requested_resources, estimated_runtime, max_termination_time, detail)
SELECT * FROM unnest($1::uuid[], $2::text[], $3::jsonb[], $4::jsonb[], $5::float8[], $6::float8[], $7::jsonb[])
"""

MAKE_AVAILABLE: Final = """
UPDATE task SET state = CASE WHEN has_command THEN 'available' ELSE 'terminated' END, entered_at = $1
WHERE id = ANY($2::uuid[]) AND state = 'inactive' AND pending_dependency_count = 0
RETURNING id, state
"""

WAITING_FOR_OTHERS: Final = """
SELECT id, pending_dependency_count FROM task
WHERE id = ANY($1::uuid[]) AND state = 'inactive' AND pending_dependency_count > 0 ORDER BY id LIMIT 1
"""

CANCEL_TASKS: Final = """
WITH cancelled AS (
    UPDATE task SET
        state = CASE state WHEN 'running' THEN 'pending_cancellation' ELSE 'cancelled' END, entered_at = $1
    WHERE id = ANY($2::uuid[]) AND state IN ('inactive', 'available', 'running')
    RETURNING id, state, attempt, worker_id
), counted AS (
    SELECT count(*) FILTER (WHERE state = 'cancelled') AS cancelled FROM cancelled
)
SELECT counted.cancelled, told.worker_id, told.id, told.attempt
FROM counted LEFT JOIN cancelled told ON told.state = 'pending_cancellation'
"""


@dataclass(frozen=True, slots=True)
class Draft:
    """A task as it is wanted. `command`, `requested_resources` and `detail` are JSON text and are passed on unread."""

    id: TaskId
    project: ProjectId
    state: State = AVAILABLE
    name: str = ""
    command: str | None = None
    requested_resources: str = "{}"
    estimated_runtime: float | None = None
    max_termination_time: float = 10.0
    max_retry_count: int = 1
    priority: int = 0
    detail: str = "{}"


class Cancelled(NamedTuple):
    cancelled: int
    told: list[tuple[WorkerId, Held]]
    """Which worker must be told to stop what; these are pending until it answers or its lease is over."""


async def create(conn: Connection, drafts: Iterable[Draft], edges: Iterable[Edge], now: float) -> int:
    """Stores a whole graph or nothing. Returns how many tasks can be claimed because of it."""
    drafts, edges = list(drafts), list(dict.fromkeys(edges))
    if not drafts:
        return 0
    fresh = {draft.id: draft.state for draft in drafts}
    await check_edges(conn, edges, fresh, _checked_project(drafts))
    await _store(conn, drafts, edges, now)
    passed = [draft.id for draft in drafts if draft.state is AVAILABLE and draft.command is None]
    ready = sum(draft.state is AVAILABLE for draft in drafts) - len(passed)
    return ready + await release_continuations(conn, passed, now)


async def make_available(conn: Connection, ids: Iterable[TaskId], now: float) -> int:
    """A user opens inactive tasks that wait for nobody; all of them or none. Returns how many can be claimed now."""
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
    return len(opened) - len(passed) + await release_continuations(conn, passed, now)


async def cancel(conn: Connection, ids: Iterable[TaskId], now: float) -> Cancelled:
    """Cancels these and all that waits for them; what runs becomes pending. Unknown and ended ones are skipped."""
    asked = list(dict.fromkeys(ids))
    rows = await lock(conn, asked, REACH_OF_CANCEL, asked, until_closed=True)
    changed = await conn.fetch(CANCEL_TASKS, now, [row["id"] for row in rows])
    told = [(row["worker_id"], Held(row["id"], row["attempt"])) for row in changed if row["id"] is not None]
    return Cancelled(changed[0]["cancelled"], told)


def _checked_project(drafts: list[Draft]) -> ProjectId:
    for draft in drafts:
        if draft.state not in TASK.initial:
            raise conflict(draft.id, draft.state, "a new task is inactive or available")
        if len(draft.requested_resources) > REQUESTED_RESOURCES_CHARS:
            raise UserError(
                f"Task {draft.id} asks for resources in more than {REQUESTED_RESOURCES_CHARS} characters.",
                hint="Name fewer resources, or give them shorter names.",
            )
        if draft.project != drafts[0].project:
            raise UserError("These tasks belong to different projects.", hint="Create them project by project.")
    if len({draft.id for draft in drafts}) < len(drafts):
        raise UserError("One request names the same task twice.", hint="Give each task an id of its own.")
    return drafts[0].project


async def _store(conn: Connection, drafts: list[Draft], edges: list[Edge], now: float) -> None:
    fresh = {draft.id for draft in drafts}
    waits_for = Counter(edge.target for edge in edges)
    tasks = [
        (draft.id, _first_state(draft), draft.priority, draft.max_retry_count, waits_for[draft.id], bool(draft.command))
        for draft in drafts
    ]
    specs = [
        (d.id, d.name, d.command, d.requested_resources, d.estimated_runtime, d.max_termination_time, d.detail)
        for d in drafts
    ]
    try:
        await conn.execute(STORE_TASKS, drafts[0].project, now, *zip(*tasks, strict=True))
    except asyncpg.UniqueViolationError as error:
        raise Conflict("One of these tasks exists already.", hint="Nothing was stored; use fresh ids.") from error
    await conn.execute(STORE_SPECS, *zip(*specs, strict=True))
    inside = [edge for edge in edges if edge.target in fresh]
    if inside:
        await conn.execute(STORE_CONTINUATIONS, *columns(inside))
    if len(inside) < len(edges):
        await conn.execute(ADD_CONTINUATIONS, *columns([edge for edge in edges if edge.target not in fresh]))


def _first_state(draft: Draft) -> str:
    """A barrier is past at once; its continuations are released when the edges are there."""
    return "terminated" if draft.state is AVAILABLE and draft.command is None else draft.state.value
