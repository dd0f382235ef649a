"""What a person sees: columns that line up, colours on a terminal only, nothing wider than the window."""

import sys

import pytest

from stoker.cli import exits, screen
from stoker.cli.ps import HOME_AND_CLEAR
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


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_list_fits_a_narrow_window(connected: dict[str, str], fake: Fake, columns: int) -> None:
    """Half a screen beside an editor: what matters least is left out, and nothing is wrapped."""
    fake.add(run("sharp-furnace-1234", **RUNNING | {"status_message": "its machine could not be reached"}))
    for args in (["ps"], ["ps", "-w"]):
        with terminal({**connected, "NO_COLOR": "1"}, *args, size=(columns, 24)) as person:
            person.wait_for(b"RUNNING")
            person.type(CTRL_C)
            person.ends()
        shown = person.seen.decode().replace(HOME_AND_CLEAR, "").splitlines()[:2]
        assert max(map(len, shown)) <= columns, shown
        assert shown[1].startswith("sharp-furnace-1234  RUNNING")
        assert ("SUBMITTED" in shown[0]) is (columns > 40)


def test_what_is_watched_fits_the_height_of_the_window(connected: dict[str, str], fake: Fake) -> None:
    """What scrolled out at the top could not be drawn anew."""
    fake.add(*(run(f"run-{number}", **RUNNING) for number in range(30)))
    with terminal({**connected, "NO_COLOR": "1"}, "ps", "-w", size=(80, 10)) as person:
        person.wait_for(b"and 24 more")
        person.type(CTRL_C)
        person.ends()
    assert len(person.seen.decode().split(HOME_AND_CLEAR)[1].splitlines()) <= 10


def test_columns_that_come_line_by_line_stand_below_each_other() -> None:
    columns = screen.Columns(("A", "B", "C"), (3, 2, 1))
    assert [columns.header(), columns.row(("x", "longer", "1")), columns.row(("y", "", "2"))] == [
        "A    B   C",
        "x    longer  1",
        "y            2",
    ]


def test_a_sentence_is_broken_between_words() -> None:
    said = "needs 1 CPU, local-9c41ab has none"
    assert screen.wrapped(said, 20, 4) == ["needs 1 CPU,", "local-9c41ab has", "none"]
    assert screen.wrapped(said, 20, 2) == ["needs 1 CPU,", "local-9c41ab has no…"]
    assert screen.wrapped("a-word-that-is-too-long", 10, 2) == ["a-word-th…"]


def test_painting_needs_a_terminal() -> None:
    assert screen.paint("x", "red", sys.stderr) == "x" or sys.stderr.isatty()
