"""The one function that follows every table, and the promise that nothing in core knows a clock, dice or a store."""

import ast
import sys
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

import stoker.core
from stoker.core.machine import Effect, Event, Machine, Refused, Row, Send, Step, Then, ask, nothing, pairs, rows, stay
from tests.core.living import RUN_ID


class S(Enum):
    SHUT = "shut"
    OPEN = "open"
    GONE = "gone"


@dataclass(frozen=True)
class Door:
    state: S = S.SHUT
    attempt: int = 1
    version: int = 7
    entered_at: float = 0.0
    knocks: int = 0


@dataclass(frozen=True, slots=True)
class Knocked(Event):
    loud: bool = False


@dataclass(frozen=True, slots=True)
class Burned(Event):
    pass


@dataclass(frozen=True, slots=True)
class Ring(Effect):
    pass


TOLD = Send("neighbour", RUN_ID, Burned())


def count(door: Door, event: Knocked, now: float) -> Then:
    return ask(Ring(), knocks=door.knocks + 1)


def burn(door: Door, event: Burned, now: float) -> Then:
    return ask(sends=(TOLD,), note="burned down")


def loud(door: Door, event: Knocked, now: float) -> bool:
    return event.loud


DOOR: Machine[Door] = Machine(
    "door",
    (S.SHUT,),
    (
        Row(S.SHUT, Knocked, S.OPEN, count, loud),
        *stay((S.SHUT,), Knocked, count),
        *rows((S.SHUT, S.OPEN), Burned, S.GONE, burn),
    ),
    pairs((S.GONE,), Knocked),
)


def test_the_first_row_whose_guard_holds_is_followed() -> None:
    assert DOOR.step(Door(), Knocked(loud=True), 5.0).record == Door(S.OPEN, 1, 8, 5.0, 1)
    assert DOOR.step(Door(), Knocked(), 5.0).record == Door(S.SHUT, 1, 8, 0.0, 1)


def test_a_step_tells_what_it_asks_for_whom_it_tells_and_which_row_it_was() -> None:
    step = DOOR.step(Door(), Burned(), 5.0)
    assert step == Step(Door(S.GONE, 1, 8, 5.0), (), (TOLD,), DOOR.rows[2], "burned down")
    assert DOOR.step(Door(), Knocked(), 5.0).effects == (Ring(),)


def test_stale_news_changes_nothing() -> None:
    gone = Door(S.GONE)
    assert DOOR.step(gone, Knocked(), 5.0) == Step(gone)


def test_news_of_another_try_is_stale_in_every_state() -> None:
    for state in S:
        door = Door(state)
        assert DOOR.step(door, Burned(attempt=2), 5.0) == Step(door)


def test_what_is_not_possible_names_machine_state_and_event() -> None:
    with pytest.raises(Refused, match="door is OPEN: Knocked is not possible now"):
        DOOR.step(Door(S.OPEN), Knocked(), 5.0)


def test_the_table_knows_its_holes_and_its_end() -> None:
    assert DOOR.refused() == {("OPEN", "Knocked"), ("GONE", "Burned")}
    assert DOOR.finished == {S.GONE}
    assert DOOR.events == {Knocked, Burned}
    assert DOOR.shadowed() == []


def test_a_pair_with_guarded_rows_only_may_be_refused() -> None:
    guarded: Machine[Door] = Machine("door", (S.SHUT,), (Row(S.SHUT, Knocked, S.OPEN, count, loud),), frozenset())
    assert ("SHUT", "Knocked") in guarded.refused()
    with pytest.raises(Refused):
        guarded.step(Door(), Knocked(), 5.0)


def test_a_row_behind_an_unguarded_one_is_found() -> None:
    hidden = Row(S.SHUT, Burned, S.OPEN, nothing)
    shadowing: Machine[Door] = Machine("door", (S.SHUT,), (*DOOR.rows, hidden), DOOR.stale)
    assert shadowing.shadowed() == [hidden]


def test_a_row_says_itself_in_one_line() -> None:
    assert DOOR.rows[0].name == "SHUT --Knocked [loud]--> OPEN (count)"


def test_the_diagram_has_an_arrow_for_each_row_that_moves() -> None:
    assert list(DOOR.mermaid()) == [
        "stateDiagram-v2",
        "    [*] --> SHUT",
        "    SHUT --> OPEN: Knocked [loud]",
        "    SHUT --> GONE: Burned",
        "    OPEN --> GONE: Burned",
        "    GONE --> [*]",
    ]


MODULES = sorted(Path(stoker.core.__file__).parent.rglob("*.py"))
IMPURE = {
    "time",
    "random",
    "secrets",
    "os",
    "socket",
    "subprocess",
    "logging",
    "asyncio",
    "threading",
    "io",
    "tempfile",
}


def imported(module: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add("." * node.level + (node.module or ""))
    return names


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_core_imports_the_standard_library_and_cronsim_only(module: Path) -> None:
    for name in imported(module):
        if not name.startswith("stoker.core"):
            room = name.partition(".")[0]
            assert room == "cronsim" or room in sys.stdlib_module_names - IMPURE, f"{module.name} imports {name}"


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_core_reads_no_clock_and_prints_nothing(module: Path) -> None:
    """Time is an argument, and so is chance."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            assert call not in ("print", "open", "input", "uuid4", "uuid1", "uuid.uuid4"), f"{module.name}: {call}"
            assert not call.endswith((".now", ".utcnow", ".today")), f"{module.name}: {call}"
