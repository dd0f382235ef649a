"""Graphs of tasks that a person or a program wrote: YAML with `tasks:`, or JSON lines with a task each."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stoker.client.client import Json
from stoker.client.upload import line as as_line
from stoker.core.errors import UserError

if TYPE_CHECKING:
    from stoker.wire.yaml import Items, Node

AS_WRITTEN: Final = ("command", "env", "stdin", "labels", "name", "ref", "group", "depends_on", "continuations")
"""Below these, `true` is a word and 1.10 stays as it is."""
HINT: Final = "The least is `tasks:` and below it `- command: echo hello`."
MOST_SAID: Final = 10
"""Mistakes that are told at once."""


@dataclass(frozen=True)
class Graph:
    """What a YAML file says, and where each task stands in it."""

    where: str
    tasks: list[Json]
    items: "Items"

    def lines(self) -> Iterator[bytes]:
        return map(as_line, self.tasks)

    def explained(self) -> UserError | None:
        """What is wrong with each task, with lines; None when nothing is, as far as one task can tell.

        The models take a quarter of a second to import, so they are asked only when the server has refused it.
        """
        from pydantic import ValidationError

        from stoker.wire.problem import problems_of
        from stoker.wire.task import NewTask
        from stoker.wire.yaml import line_of

        told = []
        for place, task in enumerate(self.tasks):
            try:
                NewTask.model_validate(task)
            except ValidationError as error:
                for problem in problems_of(error.errors(), NewTask):
                    path = [int(step) if step.isdecimal() else step for step in problem.key.split(".") if step]
                    at = line_of(self.items, (place, *path))
                    said = f"{self.where}: line {at}: {problem.key}: {problem.message}. {problem.hint}"
                    told.append(said.rstrip())
        more = [f"… and {len(told) - MOST_SAID} more"] if len(told) > MOST_SAID else []
        return UserError("\n       ".join([*told[:MOST_SAID], *more]), code="invalid") if told else None


def read_yaml(text: bytes, where: str, *, group: str | None, otherwise: str) -> Graph:
    """A task's name is its `ref` too, where it says no other and no other task has that name. Tasks without a group are
    put into this one, or that of the file, or the one that was made up.
    """
    from stoker.wire.yaml import BadYaml, Items, Pairs, compose, keyed

    try:
        root = compose(text)
    except BadYaml as error:
        larger = " A larger graph is written as JSON lines, one task each." if error.line is None else ""
        raise UserError(f"{where}: {error.sentence}", hint=f"{error.hint}{larger}".strip(), code=error.code) from None
    items = root.nodes.get("tasks") if isinstance(root, Pairs) else None
    if not isinstance(root, Pairs) or not isinstance(items, Items) or not items.nodes:
        raise UserError(f"{where}: line {root.line}: expected a map with a list of `tasks`.", hint=HINT)
    for key, at in root.lines.items():
        if key not in ("tasks", "group"):
            said = f"{where}: line {at}: {key}: there is no such key here."
            raise UserError(said, hint="Beside `tasks` there may be a `group`, for all of them.")
    said_group = root.nodes.get("group")
    group = group or (_text(said_group, where) if said_group is not None else otherwise)
    tasks = []
    for node in items.nodes:
        if not isinstance(node, Pairs):
            raise UserError(f"{where}: line {node.line}: expected a map that describes a task.", hint=HINT)
        tasks.append(keyed(node, AS_WRITTEN, ""))
    return Graph(where, [_grouped(task, group) for task in _named(tasks)], items)


def _text(node: "Node", where: str) -> str:
    from stoker.wire.yaml import Scalar

    if not isinstance(node, Scalar):
        raise UserError(f"{where}: line {node.line}: group: expected a name.")
    return node.text


def _named(tasks: list[Json]) -> list[Json]:
    taken = {task["ref"] for task in tasks if isinstance(task.get("ref"), str)}
    names = Counter(task["name"] for task in tasks if isinstance(task.get("name"), str) and "ref" not in task)
    alone = {name for name, count in names.items() if count == 1 and name and name not in taken}
    return [task if "ref" in task or task.get("name") not in alone else task | {"ref": task["name"]} for task in tasks]


def _grouped(task: Json, group: str) -> Json:
    return task if task.get("group") is not None else task | {"group": group}


def read_lines(lines: Iterable[bytes], where: str, *, group: str, groups: set[str]) -> Iterator[bytes]:
    """Each is checked as it passes by; `groups` is told of all groups that are named. Empty ones stay, so that the
    server counts as we do.
    """
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            yield b""
            continue
        try:
            task = json.loads(line)
        except ValueError as error:
            raise UserError(f"{where}: line {number}: this is not JSON: {error}.") from None
        if not isinstance(task, dict):
            raise UserError(f"{where}: line {number}: expected an object that describes a task.")
        grouped = _grouped(task, group)
        groups.add(str(grouped["group"]))
        yield line.strip() if grouped is task else as_line(grouped)
