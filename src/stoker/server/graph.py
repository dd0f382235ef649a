"""From tasks as people write them to what is stored: ids are made, names of the request become edges."""

import json
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from stoker.core.errors import NotFound, UserError
from stoker.core.graph import Edge
from stoker.core.ids import ProjectId, TaskId
from stoker.core.limits import MOST_EDGES_IN_A_GRAPH, MOST_TASKS_IN_A_GRAPH
from stoker.core.task import State
from stoker.store.task import Draft
from stoker.store.task_list import DEFAULT_DETAIL
from stoker.wire.env import bare
from stoker.wire.model import Invalid, Problem
from stoker.wire.task import NewTask
from stoker.wire.time import seconds_of

_DETAILS: Final = ("working_dir", "stdin", "exclusive", "output", "output_dir")


class Graph:
    """The tasks of one request. Refs may be used before they are given, so edges are known when all tasks are."""

    def __init__(self, project: ProjectId, user: str, new_id: Callable[[], UUID]) -> None:
        self._project, self._user, self._new_id = project, user, new_id
        self._last_id: UUID | None = None
        self._refs: dict[str, TaskId] = {}
        self._fresh: set[TaskId] = set()
        self._forward: list[tuple[TaskId, str]] = []
        self._backward: list[tuple[str, TaskId]] = []
        self._texts: dict[tuple[tuple[str, Any], ...], str] = {}
        self.ids: list[TaskId] = []
        self.keys: dict[str, int] = {}
        """How many tasks with a concurrency key may run, by the last word."""
        self.has_moments = False
        """Whether one of them begins later, or has a deadline."""

    def take(self, task: NewTask) -> Draft:
        id = TaskId(task.id or self._next_id())
        if task.ref is not None:
            if task.ref in self._refs:
                raise UserError(f"Two tasks of this request have the ref {task.ref[:80]!r}.", code="duplicate_ref")
            self._refs[task.ref] = id
        self._forward += [(id, name) for name in task.continuations]
        self._backward += [(name, id) for name in task.depends_on]
        self.ids.append(id)
        self._fresh.add(id)
        if len(self.ids) > MOST_TASKS_IN_A_GRAPH or len(self._forward) + len(self._backward) > MOST_EDGES_IN_A_GRAPH:
            raise UserError(
                f"One request may hold {MOST_TASKS_IN_A_GRAPH} tasks and {MOST_EDGES_IN_A_GRAPH} edges.",
                hint="Send several; continuations may name tasks of an earlier one.",
                code="too_large",
            )
        if task.concurrency_key is not None:
            self.keys[task.concurrency_key] = task.concurrency_limit or self.keys.get(task.concurrency_key, 1)
        if task.start_after is not None or task.deadline is not None:
            self.has_moments = True
        _check(task)
        return self._draft(id, task)

    def _next_id(self) -> UUID:
        """In the order of the request, so that lists show it so, and of equal tasks the first is the first to run."""
        self._last_id = UUID(int=self._last_id.int + 1) if self._last_id is not None else self._new_id()
        return self._last_id

    def _draft(self, id: TaskId, task: NewTask) -> Draft:
        return Draft(
            id,
            self._project,
            None if task.state is None else State(task.state),
            task.name,
            None if task.command is None else json.dumps(task.command),
            self._text(task.requested_resources),
            tuple(map(self._text, task.alternatives)),
            task.estimated_runtime,
            task.max_termination_time,
            task.max_retry_count,
            task.crash_limit,
            task.priority,
            task.group,
            json.dumps(task.labels) if task.labels else "{}",
            tuple(f"{name}={value}" for name, value in task.labels.items()),
            task.concurrency_key,
            None if task.start_after is None else seconds_of(task.start_after),
            None if task.deadline is None else seconds_of(task.deadline),
            None,
            self._user,
            _detail(task),
        )

    def _text(self, amounts: dict[str, Any]) -> str:
        key = tuple(amounts.items())
        if (text := self._texts.get(key)) is None:
            text = self._texts[key] = json.dumps(amounts)
        return text

    def edges(self) -> tuple[list[Edge], list[Edge]]:
        """Those among the tasks of the request or to others; and those by which they wait for others."""
        edges = [Edge(source, self._named(target)) for source, target in self._forward]
        after: list[Edge] = []
        for name, target in self._backward:
            source = self._named(name)
            (edges if source in self._fresh else after).append(Edge(source, target))
        return edges, after

    def _named(self, name: str) -> TaskId:
        if (id := self._refs.get(name)) is not None:
            return id
        try:
            return TaskId(UUID(name))
        except ValueError:
            raise NotFound(
                f"No task of this request has the ref {name[:80]!r}, and it is no id.",
                hint="Edges name tasks by `ref`, or by id where they were stored before.",
                code="unknown_ref",
            ) from None


def _check(task: NewTask) -> None:
    problems = [Problem(key="env", message=f"{name} has no value") for name in bare(task.env)[:5]]
    if task.command is None and (task.start_after is not None or task.stdin is not None):
        problems.append(Problem(key="command", message="a barrier has no command: it neither starts later nor reads"))
    if task.concurrency_limit is not None and task.concurrency_key is None:
        problems.append(Problem(key="concurrency_limit", message="a limit needs a concurrency_key"))
    if problems:
        raise Invalid(problems)


def _detail(task: NewTask) -> str:
    detail: dict[str, Any] = {"env": task.env} if task.env else {}
    for name in _DETAILS:
        value = getattr(task, name)
        if value != DEFAULT_DETAIL[name]:
            detail[name] = value
    if task.alternatives:
        detail["alternatives"] = task.alternatives
    if task.group is not None:
        detail["group"] = task.group
    return json.dumps(detail) if detail else "{}"
