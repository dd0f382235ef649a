"""What a person sees: columns that line up, colours on a terminal only, nothing wider than the window."""

import sys

import pytest

from stoker.cli import exits, screen
from tests.cli.fake import Fake, run
from tests.cli.terminal import CTRL_C, terminal

RUNNING = {"status": "RUNNING", "termination_reason": None, "exit_code": None, "finished_at": None}


def test_columns_line_up_also_with_wide_letters() -> None:
    lines = screen.table(("A", "B"), [("x", "1"), ("日本", "2"), ("longer", "3")]).splitlines()
    assert lines == ["A       B", "x       1", "日本    2", "longer  3"]


def test_what_others_wrote_is_one_line_and_commands_nothing() -> None:
    assert screen.table(("A",), [("a\x1b[2J\n\tb",)]).splitlines()[1] == "a?[2J b"


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_for_terminals(connected: dict[str, str], fake: Fake, env: dict[str, str], coloured: bool) -> None:
    fake.add(run("train", **RUNNING))
    with terminal({**connected, **env}, "ps") as person:
        assert person.ends() == 0
    assert b"RUNNING" in person.seen
    assert (b"\x1b[" in person.seen) is coloured


def test_the_last_column_ends_with_the_window(connected: dict[str, str], fake: Fake) -> None:
    fake.add(run("train", **RUNNING | {"status_message": "word " * 100}))
    with terminal({**connected, "COLUMNS": "100", "NO_COLOR": "1"}, "ps") as person:
        person.ends()
    assert max(map(len, person.seen.decode().splitlines())) == 100
    assert "…" in person.seen.decode()


def test_watching_goes_on_until_ctrl_c(connected: dict[str, str], fake: Fake) -> None:
    fake.add(running := run("train", **RUNNING))
    with terminal({**connected, "NO_COLOR": "1"}, "ps", "-w", "-a") as person:
        person.wait_for(b"RUNNING")
        running["status"] = "DONE"
        person.wait_for(b"DONE")
        person.type(CTRL_C)
        assert person.ends() == exits.INTERRUPTED
    assert b"Traceback" not in person.seen
    assert b"Error" not in person.seen


def test_painting_needs_a_terminal() -> None:
    assert screen.paint("x", "red", sys.stderr) == "x" or sys.stderr.isatty()
