"""Figures of the swarm: of a project, a group, a label, and of one task."""

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from stoker.core.errors import NotFound
from stoker.core.ids import TaskId
from stoker.server.api.task import GroupFilter, LabelFilter, TaskRef
from stoker.server.auth import Member
from stoker.server.error import answered
from stoker.server.parameter import Ctx
from stoker.server.statistics import of_scope, scope_of
from stoker.store import task_list
from stoker.store.database import Record
from stoker.wire.task import Measure, Statistics

router = APIRouter(prefix="/projects/{project}/tasks", tags=["tasks"])


@router.get("/statistics", response_model=Statistics)
async def statistics(context: Ctx, access: Member, group: GroupFilter = None, label: LabelFilter = None) -> Response:
    """Of all tasks of the project, of a group, or of those with a label. Kept up by every commit, not counted now."""
    return answered(await of_scope(context, access.project_id, *scope_of(group, label)))


@router.get("/{task}/statistics", response_model=Statistics)
async def task_statistics(context: Ctx, access: Member, task: TaskRef) -> Response:
    """Of the attempts of one task."""
    async with context.database.connection() as connection:
        row = await task_list.get(connection, access.project_id, TaskId(task))
        if row is None:
            raise NotFound(f"There is no task {task} in project {access.project}.")
        attempts = await task_list.history(connection, TaskId(task))
    return answered(_of_attempts(row, attempts))


def _of_attempts(row: dict[str, Any], attempts: list[Record]) -> Statistics:
    codes: dict[int, int] = {}
    for one in attempts:
        if one["exit_status"] is not None:
            codes[one["exit_status"]] = codes.get(one["exit_status"], 0) + 1
    ended = row["state"] == "terminated"
    done = ended and (row["exit_status"] == 0 or row["command"] is None)
    return Statistics(
        total=1,
        states={row["state"]: 1},
        succeeded=int(done),
        failed=int(ended and not done),
        held=int(row["held"] == "poison"),
        retries=max(0, len(attempts) - 1),
        lost=sum(one["outcome"] == "lost" for one in attempts),
        exit_codes=codes,
        run_time=_exact([one["time_terminated"] - one["time_started"] for one in attempts if _ran(one)]),
        memory=_exact([one["memory_bytes"] for one in attempts if one["memory_bytes"] is not None]),
        cpu=_exact([one["cpu_s"] for one in attempts if one["cpu_s"] is not None]),
        gpu=_exact([one["gpu"] for one in attempts if one["gpu"] is not None]),
    )


def _ran(one: Record) -> bool:
    return one["time_started"] is not None and one["time_terminated"] is not None


def _exact(values: list[float]) -> Measure:
    if not values:
        return Measure()
    ordered = sorted(values)

    def at(part: float) -> float:
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))]

    return Measure(
        count=len(ordered), mean=sum(ordered) / len(ordered), p50=at(0.5), p90=at(0.9), p99=at(0.99),
        least=ordered[0], most=ordered[-1],
    )  # fmt: skip
