"""A graph of tasks that a script builds, and sends as one."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Unpack

from stoker.client.fresh_ids import fresh_ids
from stoker.client.new_task import Command, Options, new_task
from stoker.core.errors import UserError

if TYPE_CHECKING:
    from stoker.client.client import Json
    from stoker.client.swarm import Batch, Tasks


class Node:
    """A task of a graph. Its `id` is chosen here, so it is known before the graph is sent."""

    __slots__ = ("id", "number")

    def __init__(self, id: str, number: int) -> None:
        self.id, self.number = id, number

    def __repr__(self) -> str:
        return f"<task {self.id}>"


class Graph:
    """Tasks and which of them wait for which. `submit` stores all of them or none::

    graph = client.tasks.graph()
    parts = [graph.add(["./count", name]) for name in names]
    graph.add("./sum *.count", after=parts)
    graph.submit().wait()
    """

    def __init__(self, tasks: "Tasks", group: str) -> None:
        self._tasks, self.group = tasks, group
        self._nodes: dict[str, Node] = {}
        self._said: list[Json] = []
        self._ids = fresh_ids()
        self._sent = False

    def __len__(self) -> int:
        return len(self._said)

    def add(self, command: Command = None, *, after: Iterable["Node | str"] = (), **options: Unpack[Options]) -> Node:
        """A task that begins when those of `after` have succeeded: tasks of this graph, or ids of earlier ones.

        The command is a list of a program and its arguments, or a line for the shell; without one it is a barrier,
        by which a thousand tasks wait for a thousand others with two thousand edges instead of a million.
        """
        self._open()
        node = Node(next(self._ids), len(self._said))
        depends_on = [self._ref(one) for one in ((after,) if isinstance(after, Node | str) else after)]
        task = new_task(command, options, after=depends_on, group=self.group)
        self._said.append(task | {"id": node.id, "ref": str(node.number)})
        self._nodes[node.id] = node
        return node

    def _ref(self, one: "Node | str") -> str:
        if isinstance(one, str):
            return one
        if one.id not in self._nodes:
            raise UserError("This task belongs to another graph.", hint="Send that one first, and name its id.")
        return str(one.number)

    def submit(self) -> "Batch":
        """Sends it. What it returns can be waited for, and knows the results."""
        self._open()
        if not self._said:
            raise UserError("There is nothing in this graph.", hint="`add` tasks first.")
        batch = self._tasks.send(self._said, group=self.group)
        self._sent = True
        return batch

    def _open(self) -> None:
        if self._sent:
            raise UserError("This graph was sent already.", hint="`client.tasks.graph()` begins another.")
