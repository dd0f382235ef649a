"""Fails on untidiness: sizes, drawers, dirty cores, forgotten notes, pages out of date.

Each check is a function from text to complaints, so that it is tried on a bad example as well as on the repository: a
check that cannot fail is no check.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from docs import apis, configurations, machines
from stoker.core.machine import Row

ROOT: Final = Path(__file__).resolve().parents[1]
MOST_LINES: Final = 400
MOST_LINES_OF_A_FUNCTION: Final = 60

ALLOWED_LONG: Final[dict[str, str]] = {}
"""`path` or `path::function`, and the reason why it may be longer than the others."""

ALLOWED_CATCH_ALL: Final = {
    "src/stoker/engine/loop.py": "the driver of loops: one that fails must run again",
    "src/stoker/engine/commit.py": "the driver of batches: whatever breaks one, every caller gets an answer",
    "src/stoker/engine/errand.py": "the driver of errands: one that breaks must not take the others with it",
    "src/stoker/engine/muster.py": "the driver of rounds: whatever breaks one, every worker gets an answer",
    "src/stoker/shim/task.py": "the driver of hooks: one that breaks ends its own task and no other",
    "src/stoker/runner/edge.py": "the HTTP edge of the agents: whatever breaks, the caller gets an answer",
    "src/stoker/server/edge.py": "the HTTP edge: whatever breaks, the client gets an answer that says nothing of it",
}
"""Where `except Exception` may stand."""

ALLOWED_DATABASE_CLOCK: Final = {"src/stoker/store/replica.py": "CLOCK"}
"""The one statement that asks the database for its time; every other time comes from the engine."""

ALLOWED_MACHINE_PATHS: Final = {"tests/store/test_postgres.py": "homes of users, as arguments"}

DRAWERS: Final = re.compile(r"(util|common|helper|manager|misc)s?")
NOTE: Final = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b(?!\s*\(?#\d+)")
MACHINE_PATH: Final = re.compile(r"(?<![\w.~}])/(work|root|home/\w+|Users/\w+)\b")
SQL_CLOCK: Final = re.compile(
    r"\bnow\s*\(\s*\)|\b(clock|statement|transaction)_timestamp\b|\b(current|local)_?(timestamp|time|date)\b", re.I
)
IMPURE: Final = frozenset(
    {"asyncio", "concurrent", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "select"}
    | {"selectors", "shutil", "signal", "socket", "ssl", "subprocess", "tempfile", "threading", "time", "urllib"}
)
"""Of the standard library, what touches the world."""
CORE_MAY_IMPORT: Final = (sys.stdlib_module_names - IMPURE) | {"cronsim"}
CLOCKS_AND_DICE: Final = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "urandom", "getrandbits", "monotonic"})

Check = Callable[[str, str], Iterable[str]]


# What is looked at.


@cache
def tracked() -> tuple[str, ...]:
    """Every file that is in git, or would be with the next `git add`."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return tuple(sorted(path for path in listed.split("\0") if path and (ROOT / path).is_file()))


@cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def nodes_of(text: str) -> tuple[ast.AST, ...]:
    """The module first. Walked once, since that is what takes time."""
    return tuple(ast.walk(ast.parse(text)))


def chosen(*suffixes: str, under: Sequence[str] = ("",)) -> list[str]:
    return [path for path in tracked() if path.endswith(suffixes) and path.startswith(tuple(under))]


def complaints(check: Check, paths: Iterable[str]) -> list[str]:
    return [f"{path}: {said}" for path in paths for said in check(path, text_of(path))]


# The checks.


def long_file(path: str, text: str) -> Iterator[str]:
    lines = len(text.splitlines())
    if lines > MOST_LINES and path not in ALLOWED_LONG:
        yield f"{lines} lines, more than {MOST_LINES}"


def long_function(path: str, text: str) -> Iterator[str]:
    for node in nodes_of(text):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MOST_LINES_OF_A_FUNCTION and f"{path}::{node.name}" not in ALLOWED_LONG:
                yield f"{node.name} has {lines} lines, more than {MOST_LINES_OF_A_FUNCTION}"


def drawer(path: str, text: str) -> Iterator[str]:
    for part in Path(path).parts:
        if DRAWERS.fullmatch(part.partition(".")[0].strip("_").removeprefix("test_")):
            yield f"{part} is the name of a drawer: say what is in it"


def no_docstring(path: str, text: str) -> Iterator[str]:
    module = nodes_of(text)[0]
    if text.strip() and isinstance(module, ast.Module) and ast.get_docstring(module) is None:
        yield "does not open with a sentence on what it is for"


def note_without_issue(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if found := NOTE.search(line):
            yield f"line {number}: {found[0]} without the number of an issue"


def bare_except(path: str, text: str) -> Iterator[str]:
    for node in nodes_of(text):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield f"line {node.lineno}: bare except"


def catch_all(path: str, text: str) -> Iterator[str]:
    """`except BaseException` may clean up, if it raises again at its end."""
    for node in nodes_of(text):
        if not isinstance(node, ast.ExceptHandler) or node.type is None:
            continue
        names = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
        passes_on = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        if "Exception" in names and path not in ALLOWED_CATCH_ALL:
            yield f"line {node.lineno}: except Exception outside the drivers"
        if "BaseException" in names and not passes_on:
            yield f"line {node.lineno}: except BaseException that does not raise again"


def printing(path: str, text: str) -> Iterator[str]:
    for node in nodes_of(text):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield f"line {node.lineno}: print"


def impure_import(path: str, text: str) -> Iterator[str]:
    for node in nodes_of(text):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or "." * node.level]
        else:
            continue
        for module in modules:
            ours = module == "stoker.core" or module.startswith("stoker.core.")
            if not ours and module.partition(".")[0] not in CORE_MAY_IMPORT:
                yield f"line {node.lineno}: core may not import {module}"


def reads_clock_or_dice(path: str, text: str) -> Iterator[str]:
    for node in nodes_of(text):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in CLOCKS_AND_DICE:
                yield f"line {node.lineno}: {name}() reads a clock or throws dice"


def sql_clock(path: str, text: str) -> Iterator[str]:
    """In SQL files without their comments, in Python only inside strings that are no docstrings."""
    pieces = _sql_lines(text) if path.endswith(".sql") else _strings(nodes_of(text), ALLOWED_DATABASE_CLOCK.get(path))
    for number, piece in pieces:
        if found := SQL_CLOCK.search(piece):
            yield f"line {number}: {found[0]}: times come from the engine"


def _sql_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        yield number, line.partition("--")[0]


def _strings(nodes: Sequence[ast.AST], allowed: str | None) -> Iterator[tuple[int, str]]:
    skipped: set[ast.AST] = set()
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(node.value)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == allowed for t in node.targets):
            skipped.add(node.value)
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.lineno, node.value


def machine_path(path: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if path not in ALLOWED_MACHINE_PATHS and (found := MACHINE_PATH.search(line)):
            yield f"line {number}: {found[0]} exists on one machine only"


def dead_link(path: str, text: str) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target and not (ROOT / path).parent.joinpath(target).exists():
            yield f"links to {target}, which does not exist"


def out_of_count(names: Iterable[str], what: str) -> list[str]:
    """Names that begin with four digits, counted from 0001 without a gap."""
    numbers = [name[:4] for name in sorted(names)]
    return [] if numbers == [f"{number:04}" for number in range(1, len(numbers) + 1)] else [f"{what}: {numbers}"]


# The repository.

SOURCES: Final = ("src/",)
CORE: Final = ("src/stoker/core/",)
ROOMS_WITH_SQL: Final = ("src/stoker/store/", "src/stoker/engine/")
CODE: Final = (".py", ".sql", ".toml", ".sh", ".yml", ".yaml", "Makefile", ".ci/run")
TEXT: Final = (*CODE, ".md", ".cfg", ".ini", ".json", ".txt")


@pytest.mark.parametrize(
    ("check", "suffixes", "under"),
    [
        (long_file, (".py",), ("",)),
        (long_function, (".py",), ("",)),
        (drawer, ("",), ("",)),
        (no_docstring, (".py",), ("",)),
        (note_without_issue, CODE, ("",)),
        (bare_except, (".py",), ("",)),
        (catch_all, (".py",), SOURCES),
        (printing, (".py",), SOURCES),
        (impure_import, (".py",), CORE),
        (reads_clock_or_dice, (".py",), CORE),
        (sql_clock, (".py", ".sql"), ROOMS_WITH_SQL),
        (machine_path, TEXT, ("",)),
        (dead_link, (".md",), ("",)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_repository_is_tidy(check: Check, suffixes: tuple[str, ...], under: tuple[str, ...]) -> None:
    if check is drawer:
        assert [said for path in chosen(*suffixes) for said in drawer(path, "")] == []
    else:
        paths = chosen(*suffixes, under=under)
        assert paths, "a check that looks at nothing finds nothing"
        assert complaints(check, paths) == []


def test_migrations_and_decisions_are_counted_without_a_gap() -> None:
    migrations = [Path(path).name for path in chosen(".sql", under=("src/stoker/store/migrations/",))]
    decisions = [Path(path).name for path in chosen(".md", under=("docs/decisions/",))]
    assert migrations
    assert decisions
    assert out_of_count(migrations, "migrations") + out_of_count(decisions, "decisions") == []


def test_what_is_allowed_to_be_untidy_still_is() -> None:
    """An allowance that nobody needs any more is removed."""
    for named in ALLOWED_LONG:
        path, _, function = named.partition("::")
        text = text_of(path)
        assert f"def {function}(" in text if function else len(text.splitlines()) > MOST_LINES, (
            f"{named} needs no allowance"
        )
    for path in ALLOWED_CATCH_ALL:
        assert "except Exception" in text_of(path), path


def test_the_page_of_the_machines_is_fresh() -> None:
    assert machines.PAGE.read_text(encoding="utf-8") == machines.page(), "out of date: run `make docs`"


def test_the_page_of_the_configurations_is_fresh() -> None:
    assert configurations.PAGE.read_text(encoding="utf-8") == configurations.page(), "out of date: run `make docs`"
    fleet = configurations.FLEET_PAGE.read_text(encoding="utf-8")
    assert fleet == configurations.fleet_page(), "out of date: run `make docs`"
    volume = configurations.VOLUME_PAGE.read_text(encoding="utf-8")
    assert volume == configurations.volume_page(), "out of date: run `make docs`"


def test_the_page_of_the_apis_is_fresh() -> None:
    assert apis.PAGE.read_text(encoding="utf-8") == apis.page(), "out of date: run `make docs`"


@pytest.mark.parametrize("life", machines.LIVES, ids=lambda life: life.machine.name)
def test_the_page_tells_every_row_in_the_order_in_which_it_is_tried(life: machines.Life) -> None:
    """Equal rows of several states share a line there, which must not change which of them comes first."""

    def told(row: Row) -> tuple[str, str, str]:
        return row.when.__name__ if row.when else "", row.target.name, row.then.__name__

    groups = machines.grouped(life.machine.rows)
    for state in life.machine.states:
        for event in life.machine.events:
            wanted = [told(row) for row in life.machine.rows if (row.source, row.event) == (state, event)]
            mine = [group for group in groups if group.event is event and state in group.sources]
            assert [(group.when, (group.target or state).name, group.then) for group in mine] == wanted


# Each check can fail.

BAD: Final[list[tuple[Check, str, str]]] = [
    (long_file, "a.py", "x = 1\n" * (MOST_LINES + 1)),
    (long_function, "a.py", "def f():\n" + "    x = 1\n" * MOST_LINES_OF_A_FUNCTION),
    (long_function, "a.py", "class C:\n  async def f(self):\n" + "    x = 1\n" * MOST_LINES_OF_A_FUNCTION),
    (drawer, "src/stoker/store/utils.py", ""),
    (drawer, "tests/test_helpers.py", ""),
    (drawer, "src/stoker/common/job.py", ""),
    (no_docstring, "a.py", "x = 1\n"),
    (note_without_issue, "a.py", "x = 1  # TO" + "DO: later"),
    (note_without_issue, "a.sql", "-- FIX" + "ME soon"),
    (bare_except, "a.py", "try:\n    f()\nexcept:\n    pass\n"),
    (catch_all, "src/stoker/engine/batch.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    (catch_all, "src/a.py", "try:\n    f()\nexcept (OSError, Exception) as error:\n    raise\n"),
    (catch_all, "src/stoker/engine/loop.py", "try:\n    f()\nexcept BaseException:\n    pass\n"),
    (printing, "a.py", "def f():\n    print('x')\n"),
    (impure_import, "a.py", "import asyncpg\n"),
    (impure_import, "a.py", "def f():\n    from stoker.store import run\n"),
    (impure_import, "a.py", "import time\n"),
    (impure_import, "a.py", "from os import path\n"),
    (impure_import, "a.py", "from . import other\n"),
    (reads_clock_or_dice, "a.py", "from datetime import datetime\nx = datetime.now()\n"),
    (reads_clock_or_dice, "a.py", "from uuid import uuid4\nx = uuid4()\n"),
    (sql_clock, "a.py", 'SAVE = "UPDATE run SET at = now()"\n'),
    (sql_clock, "a.py", 'SAVE = f"UPDATE {x} SET at = CURRENT_TIMESTAMP"\n'),
    (sql_clock, "src/stoker/store/replica.py", 'OTHER = "SELECT clock_timestamp()"\n'),
    (sql_clock, "a.sql", "at timestamptz DEFAULT now()"),
    (machine_path, "a.md", "see /wo" + "rk/main"),
    (machine_path, "a.py", "x = '/ro" + "ot/.pyenv'"),
    (machine_path, "a.py", "x = '/ho" + "me/builder/x'"),
    (dead_link, "README.md", "[gone](docs/gone.md)"),
]

GOOD: Final[list[tuple[Check, str, str]]] = [
    (long_file, "a.py", "x = 1\n" * MOST_LINES),
    (long_function, "a.py", "def f():\n" + "    x = 1\n" * (MOST_LINES_OF_A_FUNCTION - 1)),
    (drawer, "src/stoker/core/managed_job.py", ""),
    (no_docstring, "a.py", ""),
    (note_without_issue, "a.py", "# TO" + "DO(#12): later"),
    (catch_all, "src/stoker/engine/loop.py", "try:\n    f()\nexcept Exception:\n    pass\n"),
    (catch_all, "src/a.py", "try:\n    f()\nexcept BaseException:\n    close()\n    raise\n"),
    (printing, "a.py", "def f():\n    blueprint('x')\n"),
    (impure_import, "a.py", "from cronsim import CronSim\nfrom stoker.core.job import JOB\nimport re\n"),
    (reads_clock_or_dice, "a.py", "def f(now):\n    return now\n"),
    (sql_clock, "src/stoker/store/replica.py", 'CLOCK = "SELECT clock_timestamp()"\n'),
    (sql_clock, "a.py", '"""Never uses now()."""\nx = clock.now()\n'),
    (sql_clock, "a.sql", "-- never now()\nat double precision"),
    (machine_path, "a.md", "see frame/work, /workers and https://example.org/work"),
    (dead_link, "README.md", "[there](README.md#here) [away](https://example.org/x)"),
]


@pytest.mark.parametrize(("check", "path", "text"), BAD)
def test_a_check_complains(check: Check, path: str, text: str) -> None:
    assert list(check(path, text))


@pytest.mark.parametrize(("check", "path", "text"), GOOD)
def test_a_check_lets_pass(check: Check, path: str, text: str) -> None:
    assert list(check(path, text)) == []


def test_a_gap_and_a_number_given_twice_are_seen() -> None:
    assert out_of_count(["0001_a.sql", "0003_b.sql"], "x")
    assert out_of_count(["0001_a.sql", "0001_b.sql"], "x")
    assert out_of_count(["0002_a.sql", "0001_b.sql"], "x") == []
