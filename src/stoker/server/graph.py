"""From tasks as people write them to what is stored: ids are made, names of the request become edges."""

import json
import re
from collections.abc import Callable, Iterator
from json.encoder import encode_basestring_ascii
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

_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_DETAILS: Final = ("working_dir", "stdin", "exclusive", "output", "output_dir")
_IN_DETAIL: Final = {*_DETAILS, "env", "alternatives", "group"}


class Graph:
    """The tasks of one request. Refs may be used before they are given, so edges are known when all tasks are."""

    def __init__(self, project: ProjectId, user: str, new_id: Callable[[], UUID]) -> None:
        self._project, self._user, self._new_id = project, user, new_id
        self._last_id: UUID | None = None
        self._refs: dict[str, TaskId] = {}
        # Beside each other and not in pairs: the garbage collector would walk through hundreds of thousands of those.
        self._sources: list[TaskId | str] = []
        self._targets: list[TaskId | str] = []
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
        self._sources += [id] * len(task.continuations)
        self._targets += task.continuations
        self._sources += task.depends_on
        self._targets += [id] * len(task.depends_on)
        self.ids.append(id)
        if len(self.ids) > MOST_TASKS_IN_A_GRAPH or self.edge_count > MOST_EDGES_IN_A_GRAPH:
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
            None if task.command is None else _command(task.command),
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

    @property
    def edge_count(self) -> int:
        """As they were named."""
        return len(self._sources)

    def edges(self) -> Iterator[Edge]:
        """Among the tasks of the request, and between them and others. To be called when all of them are taken."""
        return map(Edge, map(self._named, self._sources), map(self._named, self._targets))

    def in_their_words(self, circle: UserError) -> UserError:
        """The same mistake with the refs of this request for ids that nobody has seen."""
        ids = {UUID(id) for id in _ID.findall(circle.sentence)}
        refs = {str(id): ref for ref, id in self._refs.items() if id in ids}
        sentence = _ID.sub(lambda id: refs.get(id[0], id[0]), circle.sentence)
        return UserError(sentence, hint=circle.hint, code=circle.code)

    def _named(self, end: TaskId | str) -> TaskId:
        if not isinstance(end, str):
            return end
        if (id := self._refs.get(end)) is not None:
            return id
        try:
            return TaskId(UUID(end))
        except ValueError:
            raise NotFound(
                f"No task of this request has the ref {end[:80]!r}, and it is no id.",
                hint="Edges name tasks by `ref`, or by id where they were stored before.",
                code="unknown_ref",
            ) from None


def _command(command: str | tuple[str, ...]) -> str:
    """As `json.dumps` writes it, in a fifth of the time."""
    if isinstance(command, str):
        return encode_basestring_ascii(command)
    return f"[{', '.join(map(encode_basestring_ascii, command))}]"


def _check(task: NewTask) -> None:
    problems = [Problem(key="env", message=f"{name} has no value") for name in bare(task.env)[:5]]
    if task.command is None and (task.start_after is not None or task.stdin is not None):
        problems.append(Problem(key="command", message="a barrier has no command: it neither starts later nor reads"))
    if task.concurrency_limit is not None and task.concurrency_key is None:
        problems.append(Problem(key="concurrency_limit", message="a limit needs a concurrency_key"))
    if problems:
        raise Invalid(problems)


def _detail(task: NewTask) -> str:
    if task.model_fields_set.isdisjoint(_IN_DETAIL):
        return "{}"
    detail: dict[str, Any] = {"env": task.env} if task.env else {}
    for name in _DETAILS:
        value = getattr(task, name)
        if value != DEFAULT_DETAIL[name]:
            detail[name] = value
    if task.alternatives:
        detail["alternatives"] = task.alternatives
    if task.group is not None:
        detail["group"] = task.group
    return json.dumps(detail)
