"""Swarm tasks: submitted one by one or as whole graphs, looked at, changed, cancelled, done again."""

import asyncio
import hashlib
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from stoker.core.errors import NotFound, UserError
from stoker.core.graph import Edge
from stoker.core.ids import TaskId, WorkerId
from stoker.core.limits import LONGEST_WAIT_S, MOST_ITEMS
from stoker.core.task import State, conflict
from stoker.server import task_view
from stoker.server.auth import Access, Member
from stoker.server.context import Context
from stoker.server.error import Forbidden, answered
from stoker.server.graph import Graph
from stoker.server.graph_load import GraphLoad, lines_of
from stoker.server.idempotency import IdempotencyKey
from stoker.server.parameter import Ctx, Cursor, Limit, id_cursor
from stoker.server.raw_body import described, parsed
from stoker.server.statistics import of_scope, scope_of
from stoker.server.task_again import again
from stoker.server.task_patch import by_person, by_worker
from stoker.server.worker_token import OwnOrMember, Speaker
from stoker.store import sample, task_list
from stoker.store.task_list import Filter
from stoker.wire import task as wire
from stoker.wire.user import Role

router = APIRouter(prefix="/projects/{project}/tasks", tags=["tasks"])

NDJSON: Final = "application/x-ndjson"
MOST_SELECTED: Final = 1_000_000
MOST_NODES: Final = 500
LOOK_S: Final = 0.5
"""How often those who wait for many tasks look how many are left."""

TaskRef = Annotated[UUID, Path(description="The id of a task.")]
LabelFilter = Annotated[list[str] | None, Query(description="Only with this label, as key=value; may be repeated.")]
GroupFilter = Annotated[str | None, Query(pattern=wire.LABEL, description="Only of this group.")]

_LINES: Final = {NDJSON: {"schema": {"type": "string", "description": "One NewTask a line."}}}


@router.post(
    "", response_model=wire.Created, status_code=201, openapi_extra=described(wire.NewTask, wire.NewGraph, also=_LINES)
)
async def create_tasks(context: Ctx, access: Member, request: Request, key: IdempotencyKey = None) -> Response:
    """One task, or a whole graph: all of it is stored or nothing. A large one is sent line by line, as
    application/x-ndjson, and is stored while it comes."""
    graph = Graph(access.project_id, access.user, context.engine.new_id)
    load = GraphLoad(context, access, graph, key)
    if request.headers.get("content-type", "").split(";")[0].strip().lower() == NDJSON:
        made = await load.streamed(lines_of(request.stream()))
    else:
        body = await request.body()
        made = await load.whole(_tasks(body), hashlib.sha256(body).digest())
    return answered(made.created, 201, {"Idempotent-Replayed": "true"} if made.before else None)


def _tasks(body: bytes) -> tuple[wire.NewTask, ...]:
    try:
        return parsed(wire.NewGraph, body).tasks
    except UserError as error:
        if error.code == "bad_json" or b'"tasks"' in body[:200]:
            raise
    return (parsed(wire.NewTask, body),)


@router.get("", response_model=wire.TaskPage)
async def list_tasks(
    context: Ctx,
    access: Member,
    state: Annotated[list[State] | None, Query(description="Only in these states.")] = None,
    group: GroupFilter = None,
    label: LabelFilter = None,
    name: Annotated[str | None, Query(max_length=200, pattern=wire.NO_NUL, description="Only of this name.")] = None,
    worker: Annotated[UUID | None, Query(description="Only what this worker holds.")] = None,
    held: Annotated[bool | None, Query(description="Only those held as poison, or only the others.")] = None,
    failed: Annotated[bool, Query(description="Only those that terminated without success.")] = False,
    fields: Annotated[
        str | None,
        Query(max_length=1000, description="Only these fields, by commas; without it the usual ones."),
    ] = None,
    oldest: Annotated[bool, Query(description="The oldest first; otherwise the newest.")] = False,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    holder = None if worker is None else WorkerId(worker)
    chosen = Filter(None, state, group, _labels(label), name, holder, held, failed)
    wanted = _fields(fields)
    after = id_cursor(cursor)
    async with context.database.connection() as connection:
        found = await task_list.page(
            connection, access.project_id, chosen, wanted | {"user"}, after, limit + 1, oldest=oldest
        )
    items = tuple(_chosen(task_view.shown(row, access), wanted) for row in found[:limit])
    return answered(wire.TaskPage(items=items, next_cursor=str(items[-1]["id"]) if len(found) > limit else None))


USUAL: Final = frozenset(
    {"id", "name", "user", "state", "held", "command", "priority", "retry_count", "max_retry_count", "group", "labels"}
    | {"pending_dependency_count", "worker", "exit_status", "created_at", "entered_at"}
)


def _fields(text: str | None) -> frozenset[str]:
    if text is None:
        return USUAL
    wanted = frozenset(name.strip() for name in text.split(",")) | {"id"}
    if unknown := wanted - task_list.FIELDS:
        raise UserError(
            f"A task has no field {min(unknown)[:40]!r}.", hint=f"It has {', '.join(sorted(task_list.FIELDS))}."
        )
    return wanted


def _chosen(row: dict[str, Any], wanted: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name in wanted}


def _labels(pairs: list[str] | None) -> dict[str, str] | None:
    if not pairs:
        return None
    found = {}
    for pair in pairs[:20]:
        name, equals, value = pair.partition("=")
        if not equals or "\0" in pair:
            raise UserError(f"{pair[:60]!r} is no label.", hint="Write it as key=value.")
        found[name] = value
    return found


@router.get("/wait", response_model=wire.Statistics)
async def wait_for_tasks(
    context: Ctx,
    access: Member,
    group: GroupFilter = None,
    label: LabelFilter = None,
    timeout_s: Annotated[float, Query(ge=0, le=LONGEST_WAIT_S, description="Then it is answered as it is.")] = 30.0,
) -> Response:
    """Answers when all of a group, with a label, or of the project have ended or are held; or when the time is over."""
    scope = scope_of(group, label)
    until = asyncio.get_running_loop().time() + timeout_s
    while True:
        seen = await of_scope(context, access.project_id, *scope)
        left_s = until - asyncio.get_running_loop().time()
        open_now = seen.total - seen.succeeded - seen.failed - seen.states.get("cancelled", 0) - seen.held
        if open_now == 0 or left_s <= 0 or context.stopping.is_set():
            return answered(seen)
        # Few wait, and for many tasks: one look at a sum is cheaper than to be woken by each of them.
        await asyncio.sleep(min(left_s, LOOK_S if open_now > 10 else LOOK_S / 10))


@router.post("/cancel", response_model=wire.CancelledTasks)
async def cancel_tasks(context: Ctx, access: Member, body: wire.Selection) -> Response:
    """Those, and everything that waits for them. Answers at once; workers are told of what runs."""
    chosen = await _chosen_by(context, access, body, (State.INACTIVE, State.AVAILABLE, State.RUNNING))
    async with context.database.connection() as connection:
        ids = await task_list.many(connection, access.project_id, chosen, MOST_SELECTED)
    done = await context.engine.swarm.cancel(ids, by=access.user, project=access.project_id)
    return answered(wire.CancelledTasks(cancelled=done.cancelled, pending=len(done.told)))


@router.post("/retry", response_model=wire.Retried)
async def retry_tasks(context: Ctx, access: Member, body: wire.Selection, key: IdempotencyKey = None) -> Response:
    """What did not succeed is done again by new tasks with the same edges among them; what is held may be claimed."""
    chosen = await _chosen_by(context, access, body, None)
    async with context.database.connection() as connection:
        ids = await task_list.ids(connection, access.project_id, chosen, MOST_SELECTED)
    return answered(await again(context, access, ids, key))


async def _chosen_by(
    context: Context, access: Access, body: wire.Selection, states: tuple[State, ...] | None
) -> Filter:
    if body.ids is None and not (body.group or body.labels or body.state or body.name or body.all):
        raise UserError("Nothing says which tasks are meant.", hint="Give ids, a group, labels, a state, or all: true.")
    wanted = states if body.state is None else [one for one in body.state if states is None or one in states]
    user = None if access.may(Role.MANAGER) else access.user
    if body.ids is not None:
        await _check_owners(context, access, [TaskId(id) for id in body.ids])
        user = None
    return Filter(body.ids, wanted, body.group, body.labels or None, body.name, user=user)


async def _check_owners(context: Context, access: Access, ids: list[TaskId]) -> None:
    """Users their own tasks, managers everybody's."""
    async with context.database.connection() as connection:
        owners = await task_list.owners(connection, access.project_id, ids)
    if missing := set(ids) - owners.keys():
        raise _unknown(access, min(missing))
    if not access.may(Role.MANAGER) and (others := {user for user in owners.values() if user != access.user}):
        raise Forbidden(
            f"Tasks of {min(others) or 'nobody'} are among these; {access.user} is {access.role} in project "
            f"{access.project} and may not change them.",
            hint="Ask a manager of the project.",
        )


@router.get("/{task}", response_model=wire.Task)
async def get_task(context: Ctx, access: Member, task: TaskRef) -> Response:
    return answered(await _whole(context, access, TaskId(task)))


@router.patch("/{task}", response_model=wire.Task)
async def change_task(context: Ctx, access: OwnOrMember, task: TaskRef, body: wire.TaskPatch) -> Response:
    """By a person: opened, cancelled, given another priority. By a worker: claimed, begun, ended."""
    id = TaskId(task)
    if isinstance(access, Speaker):
        return answered(await by_worker(context, access, id, body))
    await _check_owners(context, access, [id])
    await by_person(context, access, id, body)
    return answered(await _whole(context, access, id))


@router.delete("/{task}", status_code=204)
async def delete_task(context: Ctx, access: Member, task: TaskRef) -> Response:
    """With all that is kept of it. Refused before it has ended."""
    id = TaskId(task)
    await _check_owners(context, access, [id])
    async with context.database.transaction() as tx:
        if not await task_list.delete(tx, [id]):
            shown = await _whole(context, access, id)
            raise conflict(id, shown.state, "only an ended task can be deleted")
    await context.outputs.delete(id)
    return Response(status_code=204)


@router.post("/{task}/add_continuations", response_model=wire.Task)
async def add_continuations(context: Ctx, access: Member, task: TaskRef, body: wire.Continuations) -> Response:
    """These wait for it, too. They have to be inactive; it must not have ended, and no circle may come of it."""
    edges = await _edges(context, access, task, body)
    await context.engine.swarm.add_continuations(edges)
    return answered(await _whole(context, access, TaskId(task)))


@router.post("/{task}/remove_continuations", response_model=wire.Task)
async def remove_continuations(context: Ctx, access: Member, task: TaskRef, body: wire.Continuations) -> Response:
    """These do not wait for it any more; who waits for nobody else becomes available."""
    edges = await _edges(context, access, task, body)
    await context.engine.swarm.remove_continuations(edges)
    return answered(await _whole(context, access, TaskId(task)))


async def _edges(context: Context, access: Access, task: UUID, body: wire.Continuations) -> list[Edge]:
    targets = [TaskId(id) for id in dict.fromkeys(body.continuations)]
    if task in targets:
        raise UserError("A task cannot wait for itself.", code="cycle")
    await _check_owners(context, access, [TaskId(task), *targets])
    return [Edge(TaskId(task), target) for target in targets]


@router.get("/{task}/current_history", response_model=wire.ExecutionInfo)
async def current_history(context: Ctx, access: Member, task: TaskRef) -> Response:
    """The latest attempt."""
    shown = await _whole(context, access, TaskId(task))
    if shown.execution_info is None:
        raise NotFound(f"Task {task} was never claimed.")
    return answered(shown.execution_info)


@router.get("/{task}/history", response_model=wire.History)
async def history(context: Ctx, access: Member, task: TaskRef) -> Response:
    """Every attempt, the first one first."""
    await _whole(context, access, TaskId(task))
    async with context.database.connection() as connection:
        rows = await task_list.history(connection, TaskId(task))
        items = [
            task_view.attempt_of(row, await sample.series_of(connection, TaskId(task), row["attempt"]))
            for row in rows[-MOST_ITEMS:]
        ]
    return answered(wire.History(items=tuple(items)))


@router.get("/{task}/tree", response_model=wire.Tree)
async def tree(
    context: Ctx, access: Member, task: TaskRef, limit: Annotated[int, Query(ge=1, le=MOST_NODES)] = MOST_NODES
) -> Response:
    """What can be reached from it along continuations."""
    await _whole(context, access, TaskId(task))
    async with context.database.connection() as connection:
        rows = await task_list.tree(connection, TaskId(task), limit + 1)
    nodes = tuple(wire.Node(**{name: row[name] for name in wire.Node.model_fields}) for row in rows[:limit])
    return answered(wire.Tree(items=nodes, complete=len(rows) <= limit))


async def _whole(context: Context, access: Access, id: TaskId) -> wire.Task:
    async with context.database.connection() as connection:
        found = await task_view.whole(connection, access.project_id, access, id)
    if found is None:
        raise _unknown(access, id)
    return found


def _unknown(access: Access, id: UUID) -> NotFound:
    return NotFound(f"There is no task {id} in project {access.project}.", hint="`stoker task list` lists them.")
