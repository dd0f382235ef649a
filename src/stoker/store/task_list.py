"""Swarm tasks as people look at them: one, a page with the fields that were asked for, a graph, a history.

Lists go by the indices of `task_spec`, which are written once; those of one state by the index of `task`.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import State
from stoker.store.database import Connection, Record
from stoker.store.many import Many

MOST_NEIGHBOURS: Final = 1_000
DEFAULT_DETAIL: Final[Mapping[str, Any]] = {
    "env": {}, "working_dir": None, "stdin": None, "alternatives": [], "exclusive": False, "output": "server",
    "output_dir": None,
}  # fmt: skip
"""What `detail` leaves out."""

_PLAIN: Final = {
    "id": "t.id", "name": "s.name", "user": "s.user_name", "state": "t.state", "held": "coalesce(t.hold, '')",
    "estimated_runtime": "s.estimated_runtime", "max_termination_time": "s.max_termination_time",
    "max_retry_count": "t.max_retry_count", "retry_count": "t.retry_count", "crash_limit": "t.crash_limit",
    "crash_count": "t.crash_count", "priority": "t.priority",
    "pending_dependency_count": "t.pending_dependency_count", "group": "s.group_name", "worker": "t.worker_id",
    "exit_status": "t.exit_status", "created_at": "t.created_at", "entered_at": "t.entered_at",
    "deadline": "t.deadline_at", "start_after": "t.start_at", "retry_of": "s.retry_of",
    "continuations": f"ARRAY(SELECT target FROM continuation WHERE source = t.id LIMIT {MOST_NEIGHBOURS})",
    "depends_on": f"ARRAY(SELECT source FROM continuation WHERE target = t.id LIMIT {MOST_NEIGHBOURS})",
    "concurrency_key": "(SELECT nullif(key_name, '') FROM task_kind k WHERE k.id = t.kind_id)",
}  # fmt: skip
_JSON: Final = {"command": "s.command", "requested_resources": "s.requested_resources", "labels": "s.labels"}
_DETAIL: Final = "s.detail"
FIELDS: Final = frozenset({*_PLAIN, *_JSON, *DEFAULT_DETAIL, "execution_info"})

EXECUTIONS: Final = "SELECT * FROM execution WHERE task_id = $1 ORDER BY attempt"
LATEST: Final = """
SELECT DISTINCT ON (task_id) * FROM execution WHERE task_id = ANY($1::uuid[]) ORDER BY task_id, attempt DESC
"""
OWNERS: Final = """
SELECT t.id, s.user_name FROM task t JOIN task_spec s ON s.task_id = t.id
WHERE t.id = ANY($1::uuid[]) AND t.project_id = $2
"""
MANY: Final = """
SELECT coalesce(array_agg(id), '{{}}')::text, count(*), (array_agg(id))[1] FROM ({query}) AS chosen
"""
DELETE: Final = """
WITH gone AS (DELETE FROM task WHERE id = ANY($1::uuid[]) AND state IN ('terminated', 'cancelled') RETURNING id),
     spec AS (DELETE FROM task_spec USING gone WHERE task_id = gone.id),
     edge AS (DELETE FROM continuation USING gone WHERE source = gone.id OR target = gone.id),
     execution AS (DELETE FROM execution USING gone WHERE task_id = gone.id),
     sample AS (DELETE FROM task_sample USING gone WHERE task_id = gone.id),
     series AS (DELETE FROM task_series USING gone WHERE task_id = gone.id),
     output AS (DELETE FROM task_output USING gone WHERE task_id = gone.id)
SELECT id FROM gone
"""
TREE: Final = """
WITH RECURSIVE reach (id) AS (
    SELECT $1::uuid UNION SELECT c.target FROM reach JOIN continuation c ON c.source = reach.id
), near AS (SELECT id FROM reach LIMIT $2)
SELECT t.id, s.name, t.state, coalesce(t.hold, '') AS held, NOT t.has_command AS barrier, t.exit_status,
       ARRAY(SELECT target FROM continuation WHERE source = t.id ORDER BY target LIMIT $2) AS continuations
FROM near JOIN task t ON t.id = near.id JOIN task_spec s ON s.task_id = t.id
"""


@dataclass(frozen=True, slots=True)
class Filter:
    ids: Collection[UUID] | None = None
    states: Collection[State] | None = None
    group: str | None = None
    labels: Mapping[str, str] | None = None
    name: str | None = None
    worker: WorkerId | None = None
    held: bool | None = None
    failed: bool | None = None
    user: str | None = None

    @property
    def by_spec(self) -> bool:
        """Whether something is asked of what never changes."""
        return bool(self.group or self.labels or self.name or self.user or self.ids is not None)


class _Conditions:
    """Numbered arguments and what is asked of them."""

    def __init__(self, project: ProjectId) -> None:
        self.arguments: list[object] = [project]
        self.of_task: list[str] = ["t.project_id = $1"]
        self.of_spec: list[str] = ["s.project_id = $1"]

    def number(self, argument: object) -> str:
        self.arguments.append(argument)
        return f"${len(self.arguments)}"


def _conditions(project: ProjectId, chosen: Filter) -> _Conditions:
    made = _Conditions(project)
    add: Sequence[tuple[object, list[str], Callable[[str], str]]] = (
        (chosen.group, made.of_spec, lambda n: f"s.group_name = {n}"),
        (chosen.labels and json.dumps(chosen.labels), made.of_spec, lambda n: f"s.labels @> {n}::jsonb"),
        (chosen.name, made.of_spec, lambda n: f"s.name = {n}"),
        (chosen.user, made.of_spec, lambda n: f"s.user_name = {n}"),
        (chosen.worker, made.of_task, lambda n: f"t.worker_id = {n}"),
    )
    for argument, place, text in add:
        if argument:
            place.append(text(made.number(argument)))
    # Of these none at all may be meant, which is not the same as any.
    if chosen.states is not None:
        made.of_task.append(f"t.state = ANY({made.number([state.value for state in chosen.states])}::text[])")
    if chosen.ids is not None:
        made.of_spec.append(f"s.task_id = ANY({made.number(list(chosen.ids))}::uuid[])")
    if chosen.labels:
        made.of_spec.append("s.labels <> '{}'")
    if chosen.held is not None:
        made.of_task.append("t.hold = 'poison'" if chosen.held else "t.hold IS DISTINCT FROM 'poison'")
    if chosen.failed:
        made.of_task.append("t.state = 'terminated' AND t.has_command AND t.exit_status IS DISTINCT FROM 0")
    return made


def _columns(fields: Collection[str]) -> str:
    chosen = [f'{sql} AS "{name}"' for name, sql in {**_PLAIN, **_JSON}.items() if name in fields]
    if fields & DEFAULT_DETAIL.keys():
        chosen.append(f"{_DETAIL} AS detail")
    return ", ".join(dict.fromkeys(["t.id AS id", *chosen]))


async def page(
    conn: Connection,
    project: ProjectId,
    chosen: Filter,
    fields: Collection[str],
    after: UUID | None,
    most: int,
    *,
    oldest: bool = False,
) -> list[dict[str, Any]]:
    """With the fields that are asked for, and `id`."""
    made = _conditions(project, chosen)
    if after is not None:
        sign = ">" if oldest else "<"
        number = made.number(after)
        made.of_task.append(f"t.id {sign} {number}")
        made.of_spec.append(f"s.task_id {sign} {number}")
    direction, limit = "" if oldest else "DESC", made.number(most)
    where = " AND ".join([*made.of_task, *made.of_spec])
    order = f"ORDER BY t.id {direction}" if chosen.states and not chosen.by_spec else f"ORDER BY s.task_id {direction}"
    query = (
        f"SELECT {_columns(frozenset(fields))} FROM task_spec s JOIN task t ON t.id = s.task_id WHERE {where} "
        f"{order} LIMIT {limit}"
    )
    found = [_shown(row, fields) for row in await conn.fetch(query, *made.arguments)]
    if "execution_info" in fields:
        latest = {row["task_id"]: row for row in await conn.fetch(LATEST, [one["id"] for one in found])}
        for one in found:
            one["execution_info"] = latest.get(one["id"])
    return found


def _shown(row: Record, fields: Collection[str]) -> dict[str, Any]:
    shown: dict[str, Any] = {"id": row["id"]}
    detail = json.loads(row["detail"]) if "detail" in row else {}
    for name in fields:
        if name in _PLAIN:
            shown[name] = row[name]
        elif name in _JSON:
            shown[name] = None if row[name] is None else json.loads(row[name])
        elif name in DEFAULT_DETAIL:
            shown[name] = detail.get(name, DEFAULT_DETAIL[name])
    return shown


async def get(conn: Connection, project: ProjectId, id: TaskId) -> dict[str, Any] | None:
    """Everything, with the latest attempt."""
    found = await page(conn, project, Filter(ids=[id]), FIELDS, None, 1)
    return found[0] if found else None


def _ids_of(project: ProjectId, chosen: Filter, most: int) -> tuple[str, list[object]]:
    made = _conditions(project, chosen)
    limit = made.number(most)
    if not chosen.by_spec:
        return f"SELECT t.id FROM task t WHERE {' AND '.join(made.of_task)} LIMIT {limit}", made.arguments
    where = " AND ".join([*made.of_task, *made.of_spec])
    return f"SELECT t.id FROM task_spec s JOIN task t ON t.id = s.task_id WHERE {where} LIMIT {limit}", made.arguments


async def ids(conn: Connection, project: ProjectId, chosen: Filter, most: int) -> list[TaskId]:
    query, arguments = _ids_of(project, chosen, most)
    return [row["id"] for row in await conn.fetch(query, *arguments)]


async def many(conn: Connection, project: ProjectId, chosen: Filter, most: int) -> Many:
    query, arguments = _ids_of(project, chosen, most)
    row = await conn.fetchrow(MANY.format(query=query), *arguments)
    assert row is not None
    return Many(*row)


async def owners(conn: Connection, project: ProjectId, wanted: Collection[TaskId]) -> dict[TaskId, str]:
    return {row["id"]: row["user_name"] for row in await conn.fetch(OWNERS, list(wanted), project)}


async def history(conn: Connection, id: TaskId) -> list[Record]:
    return await conn.fetch(EXECUTIONS, id)


async def delete(conn: Connection, wanted: Collection[TaskId]) -> list[TaskId]:
    """Only ended ones are."""
    return [row["id"] for row in await conn.fetch(DELETE, list(wanted))]


async def tree(conn: Connection, id: TaskId, most: int) -> list[Record]:
    return await conn.fetch(TREE, id, most)
