"""One change of one swarm task, by a person or by its worker. What its state does not allow is answered with that."""

from stoker.core.errors import NotFound, UserError
from stoker.core.graph import Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import State, conflict
from stoker.server import task_view
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.server.worker_token import Speaker
from stoker.store import report, task
from stoker.store import worker as worker_store
from stoker.store.database import Record
from stoker.store.report import End
from stoker.wire.task import ExecutionPatch, Task, TaskPatch
from stoker.wire.time import seconds_of

OF_WORKERS = (State.RUNNING, State.TERMINATED)
"""States that only a worker can bring about."""


async def by_person(context: Context, access: Access, id: TaskId, body: TaskPatch) -> None:
    swarm = context.engine.swarm
    if body.priority is not None:
        async with context.database.transaction() as tx:
            if not await task.set_priority(tx, id, body.priority):
                raise conflict(id, await _state(context, access.project_id, id), "its turn has come already")
    if body.state in OF_WORKERS or (body.state is None and body.execution_info is not None):
        worker = body.execution_info.worker if body.execution_info else None
        if worker is None:
            raise conflict(id, await _state(context, access.project_id, id), "that is for its worker to say")
        await _spoken(context, access.project_id, WorkerId(worker), id, body)
    elif body.state is State.AVAILABLE:
        found = await _holder(context, access.project_id, id)
        if found["state"] == "available":
            await swarm.let_go([id])
        else:
            await swarm.make_available([id])
    elif body.state is State.CANCELLED:
        await swarm.cancel([id], by=access.user, project=access.project_id)
    elif body.state is not None:
        raise conflict(id, await _state(context, access.project_id, id), f"nobody can make it {body.state.value}")


async def by_worker(context: Context, speaker: Speaker, id: TaskId, body: TaskPatch) -> Task:
    async with context.database.connection() as connection:
        row = await worker_store.get(connection, speaker.id)
    if row is None:
        raise worker_store.unknown(speaker.id)
    told = body.execution_info and body.execution_info.worker
    if body.priority is not None or (told is not None and told != speaker.id):
        raise UserError("A worker speaks for itself, and of its own tasks.", code="not_yours")
    project = ProjectId(row["project_id"])
    await _spoken(context, project, speaker.id, id, body)
    async with context.database.connection() as connection:
        found = await task_view.whole(connection, project, None, id)
    assert found is not None
    return found


async def _spoken(context: Context, project: ProjectId, worker: WorkerId, id: TaskId, body: TaskPatch) -> None:
    """What a worker says: it claims, begins, ends or gives back."""
    swarm = context.engine.swarm
    if body.state is State.RUNNING:
        taken = await swarm.take(project, worker, id)
        if taken is None:
            raise _unknown(id)
        if isinstance(taken, State):
            raise conflict(id, taken, "it cannot be claimed")
        return
    found = await _holder(context, project, id)
    held = Held(id, found["attempt"])
    info = body.execution_info or ExecutionPatch()
    if body.state is None:
        await _noted(context, worker, held, info, State(found["state"]))
        return
    if body.state in (State.TERMINATED, State.CANCELLED):
        end = End(
            held, info.exit_status, body.state is State.CANCELLED,
            time_started=None if info.time_started is None else seconds_of(info.time_started),
            time_terminated=None if info.time_terminated is None else seconds_of(info.time_terminated),
        )  # fmt: skip
        refused = await swarm.report(worker, [end])
    elif body.state is State.AVAILABLE:
        refused = await swarm.give_back(worker, [held])
    else:
        raise conflict(id, State(found["state"]), f"a worker cannot make it {body.state.value}")
    if refused:
        raise conflict(id, await _state(context, project, id), "it is not in this worker's hands")


async def _noted(context: Context, worker: WorkerId, held: Held, info: ExecutionPatch, state: State) -> None:
    told: dict[str, float | int | None] = {
        "time_started": None if info.time_started is None else seconds_of(info.time_started),
        "time_terminated": None if info.time_terminated is None else seconds_of(info.time_terminated),
        "exit_status": info.exit_status,
    }
    async with context.database.transaction() as tx:
        for field, value in told.items():
            if value is not None and not await report.set_field(tx, worker, held, field, value):
                raise conflict(held.task, state, "it is not in this worker's hands")


async def _holder(context: Context, project: ProjectId, id: TaskId) -> Record:
    async with context.database.connection() as connection:
        found = await report.holder(connection, project, id)
    if found is None:
        raise _unknown(id)
    return found


async def _state(context: Context, project: ProjectId, id: TaskId) -> State:
    return State((await _holder(context, project, id))["state"])


def _unknown(id: TaskId) -> NotFound:
    return NotFound(f"There is no task {id} in this project.", hint="`stoker task list` lists them.")
