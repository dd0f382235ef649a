"""ROWS.md leads a reader from each way between two states to the test that takes it, and does not lead astray."""

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
LINE = re.compile(r"^\| ([A-Z, –]+) → ([A-Z]+) \| .* \| `[^`]+` \|$", re.MULTILINE)


@pytest.mark.parametrize(("title", "machine"), [("Run", RUN), ("Job", JOB), ("Instance", INSTANCE)])
def test_every_way_between_two_states_is_on_the_page(title: str, machine: Machine[Any]) -> None:
    part = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    told = {pair for sources, target in LINE.findall(part) for pair in product(sources.split(", "), [target])}
    ways = {(row.source.value, row.target.value) for row in machine.rows if row.source is not row.target}
    ways |= {("–", state.value) for state in machine.initial}
    assert told == ways


def test_every_test_that_the_page_names_is_there() -> None:
    named = set(NAMED.findall(PAGE))
    assert len(named) > 50
    missing = [f"{file}::{test}" for file, test in named if not _defines(HERE / file, test)]
    assert missing == []


def _defines(file: Path, test: str) -> bool:
    return file.exists() and re.search(rf"^(async )?def {test}\(", file.read_text(), re.MULTILINE) is not None
