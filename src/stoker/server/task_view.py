"""Swarm tasks and their attempts, from rows to what is shown."""

from collections.abc import Mapping
from typing import Any, Final

from stoker.core.ids import ProjectId, TaskId
from stoker.server.auth import Access
from stoker.store import sample, task_list
from stoker.store.database import Connection, Record
from stoker.store.sample import Series
from stoker.wire.task import ExecutionInfo, Samples, Task
from stoker.wire.time import moment, moment_or_none
from stoker.wire.user import Role

_TIMES: Final = frozenset({"created_at", "entered_at", "deadline", "start_after"})
_SERIES: Final = {"memory": "memory_usage", "cpu": "cpu_utilization", "gpu": "gpu_usage"}
HIDDEN: Final = "***"


def shown(row: Mapping[str, Any], access: Access | None) -> dict[str, Any]:
    """A row of a list, with the fields that it has. Workers, who are nobody's guests, see everything."""
    found: dict[str, Any] = {name: moment_or_none(value) if name in _TIMES else value for name, value in row.items()}
    if found.get("env") and access is not None and not sees_values(access, row.get("user")):
        found["env"] = dict.fromkeys(found["env"], HIDDEN)
    if found.get("execution_info") is not None:
        found["execution_info"] = attempt_of(found["execution_info"])
    return found


def sees_values(access: Access, user: str | None) -> bool:
    return user == access.user or access.may(Role.MANAGER)


def attempt_of(row: Record, series: Mapping[str, Series] | None = None) -> ExecutionInfo:
    samples = {
        _SERIES[name]: Samples(at=tuple(one.at), values=tuple(one.values), count=one.n, mean=one.mean, most=one.most)
        for name, one in (series or {}).items()
    }
    return ExecutionInfo(
        attempt=row["attempt"],
        worker=row["worker_id"],
        claimed_at=moment(row["claimed_at"]),
        time_started=moment_or_none(row["time_started"]),
        time_terminated=moment_or_none(row["time_terminated"]),
        exit_status=row["exit_status"],
        outcome=row["outcome"],
        message=row["message"],
        result=row["result"],
        **samples,
    )


async def whole(conn: Connection, project: ProjectId, access: Access | None, id: TaskId) -> Task | None:
    """With its latest attempt and what was seen of that."""
    row = await task_list.get(conn, project, id)
    if row is None:
        return None
    latest = row.pop("execution_info")
    series = await sample.series_of(conn, id, latest["attempt"]) if latest is not None else None
    info = None if latest is None else attempt_of(latest, series)
    return Task(**shown(row, access), execution_info=info)
