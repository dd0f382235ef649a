"""Prints docs/reference/machines.md from the tables in core, so that page and code are always of one opinion.

`python -m docs.machines` rewrites the page; with `--check` it changes nothing and exits 1 when the page is out of date.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

from stoker.core.instance import INSTANCE
from stoker.core.job import JOB
from stoker.core.machine import Event, Machine, Row
from stoker.core.managed_job import MANAGED_JOB
from stoker.core.managed_task import MANAGED_TASK
from stoker.core.reason import CONSEQUENCES, LIMITS, SENTENCES
from stoker.core.run import RUN
from stoker.core.shim_task import SHIM_TASK
from stoker.core.task import TASK
from stoker.core.volume import VOLUME

PAGE: Final = Path(__file__).parent / "reference" / "machines.md"
Pair = tuple[Enum, type[Event]]


class Life(NamedTuple):
    machine: Machine[Any]
    file: str
    sentence: str


LIVES: Final = (
    Life(
        RUN, "core/run.py", "What a person submits; its state is derived from its jobs, and only TERMINATING ends it."
    ),
    Life(JOB, "core/job.py", "One submission of one (replica, node) of a run, until all that it held is given back."),
    Life(INSTANCE, "core/instance.py", "A machine that can run jobs, from the wish for it until it is certainly gone."),
    Life(VOLUME, "core/volume.py", "A place for data that outlives jobs, until nothing of it is left."),
    Life(SHIM_TASK, "core/shim_task.py", "A container or a process with its data on one host, as its shim keeps it."),
    Life(
        MANAGED_TASK, "core/managed_task.py", "One task of a managed job: a run, launched again as often as it takes."
    ),
    Life(
        MANAGED_JOB,
        "core/managed_job.py",
        "The schedule state of a managed job: which slots it needs and which it holds.",
    ),
    Life(TASK, "core/task.py", "A swarm task; this table is the model with which the set-based SQL is compared."),
)

INTRODUCTION: Final = """\
# The machines

Printed from the tables in `src/stoker/core` by `make docs`; edit those, not this page.

Each pair (state, event) is decided in one of three ways. It has **rows**: of those that stand below each other, the
first whose condition holds is followed. It is **stale**: late or repeated news, dropped without a trace, also when
it has rows and none of their conditions holds. Or it is **refused**: somebody asks for what cannot be, and is told so.
News that tells of another attempt than the current one is stale in every state.
"""


@dataclass(slots=True)
class Group:
    """The same row of several states; `target` None: each of them stays as it is."""

    event: type[Event]
    when: str
    target: Enum | None
    then: str
    sources: list[Enum] = field(default_factory=list)

    def accepts(self, row: Row) -> bool:
        return (self.event, self.when, self.target, self.then) == _kind(row)


def _kind(row: Row) -> tuple[type[Event], str, Enum | None, str]:
    when = row.when.__name__ if row.when else ""
    return row.event, when, None if row.target is row.source else row.target, row.then.__name__


def grouped(rows: Iterable[Row]) -> list[Group]:
    """Equal rows in one line, and still the rows of each (state, event) in the order in which they are tried."""
    groups: list[Group] = []
    last: dict[Pair, Group] = {}
    for row in rows:
        pair = (row.source, row.event)
        earlier = last.get(pair)
        start = 0 if earlier is None else _place(groups, earlier) + 1
        group = next((group for group in groups[start:] if group.accepts(row)), None)
        if group is None:
            group = Group(*_kind(row))
            groups.insert(_room(groups, group, start, len(groups) if earlier is None else start), group)
        group.sources.append(row.source)
        last[pair] = group
    return groups


def _place(groups: list[Group], group: Group) -> int:
    return next(place for place, one in enumerate(groups) if one is group)


def _room(groups: list[Group], new: Group, start: int, otherwise: int) -> int:
    """Behind the one that another state has under the same condition, where there is one."""
    alike = (new.when != "" and (one.event, one.when) == (new.event, new.when) for one in groups[start:])
    return next((place + 1 for place, same in enumerate(alike, start) if same), otherwise)


def words(name: str) -> str:
    """`exit_zero` is read as "exit zero"; a row that does nothing besides moving says nothing."""
    return "" if name == "nothing" else name.replace("_", " ")


def page() -> str:
    parts: list[str] = [INTRODUCTION]
    parts += ["\n".join(_life(life)) for life in LIVES]
    parts += ["\n".join(_job_reasons()), "\n".join(_run_reasons())]
    return "\n".join(parts)


def _life(life: Life) -> Iterator[str]:
    machine = life.machine
    yield f"## {machine.name.capitalize()}\n"
    yield f"{life.sentence} The table is in `{life.file}`.\n"
    if any(state.name != state.value for state in machine.states):
        yield f"Stored and shown as {_listed(f'`{state.value}`' for state in machine.states)}.\n"
    yield "```mermaid"
    yield from machine.mermaid()
    yield "```\n"
    yield from _table(("from", "event", "when", "to", "then"), (_line(machine, one) for one in grouped(machine.rows)))
    finished = _states(machine, machine.finished)
    yield f"\nFinished, nothing leaves them: {finished}.\n"
    yield "Stale:\n"
    yield from _pairs(machine, machine.stale)
    refused = {(state, event) for state, event in _all(machine) if (state.name, event.__name__) in machine.refused()}
    yield "\nRefused, where no row's condition holds:\n"
    yield from _pairs(machine, refused)
    yield from _facts(machine)


def _line(machine: Machine[Any], group: Group) -> tuple[str, ...]:
    target = "*stays*" if group.target is None else group.target.name
    return _states(machine, group.sources), f"`{group.event.__name__}`", words(group.when), target, words(group.then)


def _all(machine: Machine[Any]) -> Iterator[Pair]:
    return ((state, event) for state in machine.states for event in machine.events)


def _states(machine: Machine[Any], states: Iterable[Enum]) -> str:
    chosen = set(states)
    return ", ".join(state.name for state in machine.states if state in chosen)


def _pairs(machine: Machine[Any], pairs: Iterable[Pair]) -> Iterator[str]:
    """Events that share their states in one line, in the order of the states."""
    where: dict[type[Event], set[Enum]] = {}
    for state, event in pairs:
        where.setdefault(event, set()).add(state)
    lines: dict[tuple[int, ...], list[str]] = {}
    for event, states in where.items():
        places = tuple(place for place, state in enumerate(machine.states) if state in states)
        lines.setdefault(places, []).append(event.__name__)
    if not lines:
        yield "- none"
    for places, events in sorted(lines.items()):
        all_states = len(places) == len(machine.states)
        names = "every state" if all_states else _states(machine, (machine.states[place] for place in places))
        yield f"- {names}: {_listed(f'`{name}`' for name in sorted(events))}"


def _facts(machine: Machine[Any]) -> Iterator[str]:
    """What the docstrings of the events say, where they say something that the name does not."""
    told = [(event.__name__, _first_line(event)) for event in machine.events]
    lines = [f"- `{name}`: {line}" for name, line in sorted(told) if line]
    if lines:
        yield "\nWhat some of the events tell:\n"
        yield from lines
    yield ""


def _first_line(event: type[Event]) -> str:
    """The first paragraph; a dataclass without a docstring has its signature there, which is no sentence."""
    text = event.__doc__ or ""
    return "" if text.startswith(f"{event.__name__}(") else " ".join(text.split("\n\n")[0].split())


def _job_reasons() -> Iterator[str]:
    yield "## Why jobs end\n"
    yield "The table is `CONSEQUENCES` in `core/reason.py`. A retry event is what `retry.on_events` may name.\n"
    reasons = (
        (reason.value, end.value, retry.value if retry else "", "yes" if reason in LIMITS else "")
        for reason, (end, retry) in CONSEQUENCES.items()
    )
    yield from _table(("reason", "job ends", "retry event", "a limit"), reasons)
    yield ""


def _run_reasons() -> Iterator[str]:
    yield "## Why runs end\n"
    yield "The table is `SENTENCES` in `core/reason.py`.\n"
    reasons = ((reason.value, then.jobs.value, then.ends.value) for reason, then in SENTENCES.items())
    yield from _table(("reason", "given to jobs still active", "run ends"), reasons)
    yield ""


def _table(head: tuple[str, ...], lines: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for line in (head, ("---",) * len(head), *lines):
        yield f"| {' | '.join(line)} |"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def main(arguments: list[str], say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m docs.machines", description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when the page is out of date")
    check: bool = parser.parse_args(arguments).check
    fresh = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == fresh:
        return 0
    if check:
        say(f"{PAGE.name} is out of date: run `make docs`.")
        return 1
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(fresh, encoding="utf-8")
    say(f"{PAGE.name} is printed anew.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
