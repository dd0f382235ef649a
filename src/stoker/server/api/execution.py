"""The attempt that a worker is at, field by field. A worker knows nothing of the history: what it says is kept with the
attempt in its hands, and series can only be appended to."""

from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Path
from pydantic import Field, ValidationError
from starlette.responses import Response

from stoker.core.errors import NotFound
from stoker.core.graph import Held
from stoker.core.ids import ProjectId, TaskId
from stoker.core.task import State, conflict
from stoker.engine.swarm import Word
from stoker.server import task_view
from stoker.server.api.task import TaskRef
from stoker.server.auth import Access
from stoker.server.context import Context
from stoker.server.error import answered
from stoker.server.parameter import Ctx
from stoker.server.raw_body import refusal
from stoker.server.task_patch import by_worker
from stoker.server.worker_token import OwnOrMember, Speaker
from stoker.store import report
from stoker.store import worker as worker_store
from stoker.store.sample import Sample
from stoker.wire.model import Answer, Model
from stoker.wire.task import ExecutionInfo, ExecutionPatch, Report, Task, TaskPatch

router = APIRouter(prefix="/projects/{project}/tasks/{task}/execution_info", tags=["tasks"])

SERIES: Final = {"memory_usage": "memory", "cpu_utilization": "cpu", "gpu_usage": "gpu"}
Name = Annotated[
    Literal["worker", "exit_status", "time_started", "time_terminated", "memory_usage", "cpu_utilization", "gpu_usage"],
    Path(description="A field of the attempt."),
]
Said = Annotated[
    Literal["worker", "exit_status", "time_started", "time_terminated"], Path(description="A field of the attempt.")
]


class Value(Answer):
    value: Any = Field(description="Of the field.")


class NewValue(Model):
    value: Any = Field(description="A number, a moment, or the id of a worker.", examples=[0])


@router.get("", response_model=ExecutionInfo)
async def execution_info(context: Ctx, access: OwnOrMember, task: TaskRef) -> Response:
    """The latest attempt."""
    return answered(await _latest(context, access, TaskId(task)))


async def _appended(context: Context, access: Speaker | Access, id: TaskId, field: str, body: Report) -> Response:
    project = await _project(context, access)
    async with context.database.connection() as connection:
        found = await report.holder(connection, project, id)
    if found is None:
        raise _unknown(id)
    if not isinstance(access, Speaker) or found["worker_id"] != access.id:
        raise conflict(id, State(found["state"]), "it is not in this worker's hands")
    now, held = context.engine.clock.now(), Held(id, found["attempt"])
    samples = [Sample(held, SERIES[field], now, value) for value in body.values]
    await context.engine.muster.say(Word(access.id, samples=samples))
    return answered(Value(value=getattr(await _latest(context, access, id), field)))


@router.post("/report_memory_usage", response_model=Value)
@router.patch("/report_memory_usage", response_model=Value, operation_id="append_memory_usage")
async def report_memory_usage(context: Ctx, access: OwnOrMember, task: TaskRef, body: Report) -> Response:
    """Bytes that its processes have, seen now."""
    return await _appended(context, access, TaskId(task), "memory_usage", body)


@router.post("/report_cpu_utilization", response_model=Value)
@router.patch("/report_cpu_utilization", response_model=Value, operation_id="append_cpu_utilization")
async def report_cpu_utilization(context: Ctx, access: OwnOrMember, task: TaskRef, body: Report) -> Response:
    """CPUs that its processes keep busy, seen now."""
    return await _appended(context, access, TaskId(task), "cpu_utilization", body)


@router.post("/report_gpu_usage", response_model=Value)
@router.patch("/report_gpu_usage", response_model=Value, operation_id="append_gpu_usage")
async def report_gpu_usage(context: Ctx, access: OwnOrMember, task: TaskRef, body: Report) -> Response:
    """How busy its GPUs are, seen now."""
    return await _appended(context, access, TaskId(task), "gpu_usage", body)


@router.get("/{field}", response_model=Value)
async def get_field(context: Ctx, access: OwnOrMember, task: TaskRef, field: Name) -> Response:
    return answered(Value(value=getattr(await _latest(context, access, TaskId(task)), field)))


@router.post("/{field}", response_model=Value)
async def set_field(context: Ctx, access: OwnOrMember, task: TaskRef, field: Said, body: NewValue) -> Response:
    """By the worker that has the task. To say that it is somebody's means to claim it."""
    id = TaskId(task)
    if not isinstance(access, Speaker):
        raise conflict(id, (await _shown(context, access, id)).state, "only its worker says that")
    try:
        info = ExecutionPatch.model_validate({field: body.value})
    except ValidationError as error:
        raise refusal(error, ExecutionPatch) from None
    claimed = State.RUNNING if field == "worker" else None
    found = await by_worker(context, access, id, TaskPatch(state=claimed, execution_info=info))
    return answered(Value(value=getattr(found.execution_info, field)))


async def _latest(context: Context, access: Speaker | Access, id: TaskId) -> ExecutionInfo:
    shown = await _shown(context, access, id)
    if shown.execution_info is None:
        raise NotFound(f"Task {id} was never claimed.")
    return shown.execution_info


async def _shown(context: Context, access: Speaker | Access, id: TaskId) -> Task:
    project = await _project(context, access)
    seer = None if isinstance(access, Speaker) else access
    async with context.database.connection() as connection:
        found = await task_view.whole(connection, project, seer, id)
    if found is None:
        raise _unknown(id)
    return found


async def _project(context: Context, access: Speaker | Access) -> ProjectId:
    if not isinstance(access, Speaker):
        return ProjectId(access.project_id)
    async with context.database.connection() as connection:
        row = await worker_store.get(connection, access.id)
    if row is None:
        raise worker_store.unknown(access.id)
    return ProjectId(row["project_id"])


def _unknown(id: TaskId) -> NotFound:
    return NotFound(f"There is no task {id} in this project.", hint="`stoker task list` lists them.")
