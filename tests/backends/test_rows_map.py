"""ROWS.md leads a reader from each way between two states, and from each event that leaves a state as it is, to the
test that takes it, and does not lead astray."""

import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from stoker.core.instance import INSTANCE
from stoker.core.job import JOB
from stoker.core.machine import Machine
from stoker.core.run import RUN

HERE = Path(__file__).parent
PAGE = (HERE / "ROWS.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w./]+\.py)::(\w+)`")
STAYS = re.compile(r"^\| ([A-Z]\w+(?:, [A-Z]\w+)*) \| .* \| `[^`]+` \|$", re.MULTILINE)
LINE = re.compile(r"^\| ([A-Z, –]+) → ([A-Z]+) \| .* \| `[^`]+` \|$", re.MULTILINE)


MACHINES = [("Run", RUN), ("Job", JOB), ("Instance", INSTANCE)]


def part_of(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize(("title", "machine"), MACHINES)
def test_every_way_between_two_states_is_on_the_page(title: str, machine: Machine[Any]) -> None:
    part = part_of(title)
    told = {pair for sources, target in LINE.findall(part) for pair in product(sources.split(", "), [target])}
    ways = {(row.source.value, row.target.value) for row in machine.rows if row.source is not row.target}
    ways |= {("–", state.value) for state in machine.initial}
    assert told == ways


@pytest.mark.parametrize(("title", "machine"), MACHINES)
def test_every_event_that_leaves_each_state_is_on_the_page(title: str, machine: Machine[Any]) -> None:
    told = [name for names in STAYS.findall(part_of(title)) for name in names.split(", ")]
    moving = {row.event for row in machine.rows if row.source is not row.target}
    staying = {row.event for row in machine.rows if row.source is row.target}
    assert sorted(told) == sorted(event.__name__ for event in staying - moving)


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(NAMED.findall(PAGE))
    assert len(named) > 50
    missing = [f"{file}::{test}" for file, test in named if not _defines(HERE / file, test)]
    assert missing == []


def _defines(file: Path, test: str) -> bool:
    return file.exists() and re.search(rf"^(async )?def {test}\(", file.read_text(), re.MULTILINE) is not None
