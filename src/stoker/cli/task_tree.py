"""`stoker task tree`: which tasks wait for which, and how far they are."""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import click

from stoker.cli import screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.cli.task_list import exit_of
from stoker.cli.task_wait import unicode_on
from stoker.client import task as tasks
from stoker.client.client import Json
from stoker.core.errors import NotFound

MOST: Final = 500
"""Tasks of a tree, as the server gives them."""
MOST_BESIDE: Final = 12
"""Continuations of one task that are drawn; of the others it is said how many there are."""
DEPTH: Final = 12
FIELDS: Final = ("id", "name", "state", "held", "exit_status", "command", "continuations")
GLYPHS: Final = {
    "done": ("✓", "green"),
    "failed": ("✗", "red"),
    "running": ("●", "green"),
    "available": ("○", "yellow"),
    "inactive": ("·", "bright_black"),
    "pending_cancellation": ("◌", "yellow"),
    "cancelled": ("⊘", "bright_black"),
    "held": ("!", "red"),
}


@command(
    "tree",
    short_help="Draw tasks and what waits for them.",
    example="""
    stoker task tree prepare
    stoker task tree --group nightly
    stoker task tree --group nightly --json | jq '.[].state'
    """,
)
@click.argument("ref", metavar="[TASK]", required=False)
@click.option("--group", metavar="NAME", help="All of this group.")
@click.option("--depth", metavar="N", type=click.IntRange(1, 500), default=DEPTH, help=f"{DEPTH} unless you say.")
@click.option("--all", "everything", is_flag=True, help=f"More than {MOST_BESIDE} of those that wait for one task.")
@json_option
@pass_session
def tree(session: Session, ref: str | None, group: str | None, depth: int, everything: bool, as_json: bool) -> None:
    """Draw a task and what waits for it, or all tasks of a group, with the state of each.

    A task that waits for several is drawn below each, and what waits for it below the first of them. A tree has at
    most 500 tasks.
    """
    if (ref is None) == (group is None):
        raise click.UsageError("Name a task, or a --group.")
    if ref is not None:
        told = tasks.tree(session.client, tasks.found(session.client, ref))
        found, complete = told["items"], told["complete"]
    else:
        found = list(tasks.listed(session.client, fields=FIELDS, group=group, oldest=True, most=MOST))
        complete = len(found) < MOST
        if not found:
            raise NotFound(f"There are no tasks in {group}.")
    if as_json:
        screen.show_json_list(found)
        return
    for line in Drawing(found, depth, None if everything else MOST_BESIDE).lines():
        screen.out(line)
    if not complete:
        screen.note(f"These are {len(found)}; there may be more.")


def status(task: Json) -> str:
    """What a person wants to know of it."""
    if tasks.poisoned(task):
        return "held"
    if task["state"] != "terminated":
        return str(task["state"])
    # A barrier has no exit status, and neither has what was lost with its last worker: that one has a command.
    good = task["exit_status"] == 0 or (task["exit_status"] is None and task.get("command") is None)
    return "done" if good else "failed"


class Place(NamedTuple):
    id: str
    before: str
    """What stands left of it."""
    branch: str
    depth: int


class Drawing:
    """On a terminal with lines, glyphs and colours; elsewhere with spaces and words."""

    def __init__(self, found: Iterable[Json], depth: int, beside: int | None) -> None:
        self._tasks = {task["id"]: task for task in found}
        self._below = {
            id: [other for other in task["continuations"] if other in self._tasks] for id, task in self._tasks.items()
        }
        self._depth, self._beside = depth, beside
        self._live = sys.stdout.isatty()
        plain = ("  ", "  ", "  ", "  ")
        drawn = ("├─ ", "└─ ", "│  ", "   ") if unicode_on(sys.stdout) else ("|- ", "`- ", "|  ", "   ")
        self._fork, self._last, self._line, self._gap = drawn if self._live else plain

    def lines(self) -> Iterator[str]:
        """Deep graphs are walked with a stack of our own."""
        waiting = {other for below in self._below.values() for other in below}
        todo = [Place(id, "", "", 0) for id in reversed(self._tasks) if id not in waiting]
        drawn: set[str] = set()
        while todo:
            place = todo.pop()
            if place.id not in self._tasks:
                yield f"{place.before}{place.branch}{place.id}"
                continue
            again = place.id in drawn and bool(self._below[place.id])
            yield f"{place.before}{place.branch}{self._told(self._tasks[place.id])}{' (above)' if again else ''}"
            if place.id not in drawn:
                drawn.add(place.id)
                todo += reversed(self._children(place))

    def _children(self, place: Place) -> list[Place]:
        below = self._below[place.id]
        shown = below if self._beside is None or len(below) <= self._beside + 1 else below[: self._beside]
        if place.depth + 1 >= self._depth:
            shown = []
        names = [*shown, *([f"… and {self._others(below[len(shown) :])}"] if len(shown) < len(below) else [])]
        left = "" if not place.branch else self._gap if place.branch == self._last else self._line
        before = place.before + left
        return [Place(name, before, self._last if name == names[-1] else self._fork, place.depth + 1) for name in names]

    def _others(self, ids: list[str]) -> str:
        counts = Counter(status(self._tasks[id]).replace("_", " ") for id in ids)
        return f"{len(ids)} more: {', '.join(f'{count} {state}' for state, count in counts.most_common())}"

    def _told(self, task: Json) -> str:
        state = status(task)
        glyph, colour = GLYPHS.get(state, ("?", ""))
        name = screen.plain(task["name"] or task["id"])
        code = exit_of(task["exit_status"]) if state == "failed" else ""
        said = f"{state.replace('_', ' ')}{f' ({code})' if code else ''}"
        if self._live and unicode_on(sys.stdout):
            return f"{screen.paint(glyph, colour)} {name}  {screen.paint(said, 'bright_black')}"
        return f"{name}  {said}"
