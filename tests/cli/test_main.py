"""Every command explains itself, and whatever goes wrong is said in a sentence."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from stoker.cli.command import Command, Group
from stoker.cli.main import TABLE, cli
from tests.cli.conftest import ROOT, Stoker, call, command
from tests.cli.fake import Fake, run

NAMES = [name for entries in TABLE.values() for name in entries]
HEAVY = ("rich", "pydantic", "urllib3", "aiohttp", "yaml", "asyncio", "fastapi", "asyncpg", "subprocess")
MOST_OPTIONAL = ("ps", "get", "logs")


def commands() -> list[tuple[str, click.Command]]:
    ctx = click.Context(cli)
    found = []
    for name in NAMES:
        one = cli.get_command(ctx, name)
        assert one is not None
        found.append((name, one))
        if isinstance(one, click.Group):
            found += [(f"{name} {inner}", each) for inner, each in one.commands.items()]
    return found


@pytest.mark.parametrize(("name", "one"), commands())
def test_every_command_has_a_sentence_and_an_example(name: str, one: click.Command) -> None:
    assert one.help
    assert isinstance(one, Command | Group)
    assert f"stoker {name.partition(' ')[0]}" in one.example
    for param in one.params:
        if isinstance(param, click.Option):
            assert param.help, param.name


def test_the_table_says_what_the_commands_say() -> None:
    """`stoker --help` loads no command, so what it says is written twice."""
    ctx = click.Context(cli)
    for entries in TABLE.values():
        for name, (_, said) in entries.items():
            one = cli.get_command(ctx, name)
            assert one is not None
            assert one.get_short_help_str(200) == said, name


@pytest.mark.parametrize("args", [("--help",), *((name, "--help") for name in MOST_OPTIONAL)])
def test_help_is_said_on_stdout(environ: dict[str, str], args: tuple[str, ...]) -> None:
    told = call(environ, *args)
    assert told.returncode == 0
    assert b"Examples:" in told.stdout
    assert told.stderr == b""


def imported(environ: dict[str, str], *args: str) -> set[str]:
    script = (
        "import sys; from stoker.cli.main import run; run(sys.argv[1:]); "
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    told = subprocess.run([sys.executable, "-c", script, *args], env=environ, capture_output=True, cwd=ROOT, check=True)
    return {module.partition(".")[0] for module in told.stderr.decode().splitlines()}


def test_help_imports_nothing_heavy_and_no_http(environ: dict[str, str]) -> None:
    assert imported(environ, "--help") & {*HEAVY, "http", "difflib"} == set()


@pytest.mark.parametrize(
    "args",
    [("ps",), ("ps", "--json"), ("run", "-d", "x")]
    + [(name, "train") for name in ("get", "logs", "stop", "hold", "trigger")],
)
def test_quick_commands_import_nothing_heavy(connected: dict[str, str], fake: Fake, args: tuple[str, ...]) -> None:
    fake.add(run("train"))
    assert imported(connected, *args) & {*HEAVY} == set()


def test_wrong_usage_is_2_and_says_where_to_look(stoker: Stoker) -> None:
    for args, said in [
        (("pss",), b"Did you mean ps"),
        (("ps", "--josn"), b"--json"),
        (("get",), b"RUN"),
        (("stop",), b"--all"),
        (("stop", "a", "--all"), b"--all"),
        (("wait",), b"Name the runs"),
        (("logs", "a", "--tail", "-1"), b"--tail"),
    ]:
        told = stoker(*args)
        assert told.returncode == 2, args
        assert said in told.stderr, args
        assert b"--help` tells" in told.stderr
        assert told.stdout == b""


@pytest.mark.parametrize("args", [(), ("token",)])
def test_without_a_command_the_help_is_shown_and_nothing_else(environ: dict[str, str], args: tuple[str, ...]) -> None:
    told = call(environ, *args)
    assert told.returncode == 2
    assert told.stdout.startswith(b"Usage: stoker") and not told.stderr


@pytest.mark.parametrize("args", [("wait", "train"), ("events", "-f", "train"), ("ps", "-w"), ("logs", "-f", "train")])
def test_a_server_that_never_was_there_is_not_waited_for(environ: dict[str, str], args: tuple[str, ...]) -> None:
    told = call({**environ, "STOKER_URL": "http://127.0.0.1:9", "STOKER_TOKEN": "t"}, *args)
    assert told.returncode == 1
    assert b"127.0.0.1:9" in told.stderr and not told.stdout


def test_no_server_is_said_with_what_to_do(environ: dict[str, str]) -> None:
    told = call(environ, "ps")
    assert (told.returncode, told.stdout) == (1, b"")
    assert b"`stoker up`" in told.stderr
    told = call({**environ, "STOKER_URL": "http://127.0.0.1:9"}, "ps")
    assert told.returncode == 1
    assert b"cannot be reached" in told.stderr
    assert b"`stoker up`" in told.stderr


def test_a_wrong_token_is_said_with_what_to_do(stoker: Stoker) -> None:
    told = stoker("ps", STOKER_TOKEN="wrong")
    assert told.returncode == 1
    assert b"STOKER_TOKEN" in told.stderr
    told = stoker("ps", STOKER_TOKEN="not\nheader")
    assert told.returncode == 1
    assert b"Traceback" not in told.stderr


@pytest.mark.parametrize(
    "answer",
    [
        (500, {}, {"error": {"code": "broken", "message": "It broke.", "hint": ""}}),
        (501, {}, {"unexpected": "proxy"}),
        (418, {}, {}),
    ],
)
def test_whatever_the_server_says_there_is_no_traceback(
    stoker: Stoker, fake: Fake, answer: tuple[int, dict[str, str], dict[str, Any]]
) -> None:
    fake.answers = [answer] * 3
    told = stoker("ps")
    assert told.returncode == 1
    assert told.stderr.startswith(b"Error: ")
    assert b"Traceback" not in told.stderr


def test_a_server_that_says_not_now_is_asked_again(stoker: Stoker, fake: Fake) -> None:
    fake.answers = [(503, {"Retry-After": "0.1"}, {}), (429, {"Retry-After": "0.1"}, {})]
    assert stoker("ps", "--json").stdout == b"[]\n"
    assert len(fake.asked) == 3


def test_our_own_mistakes_are_a_sentence_too(stoker: Stoker, fake: Fake) -> None:
    fake.answers = [(200, {}, {"items": [{"odd": 1}], "next_cursor": None})] * 2
    told = stoker("ps")
    assert told.returncode == 1
    assert b"mistake in stoker itself" in told.stderr
    assert b"Traceback" not in told.stderr
    assert b"Traceback" in stoker("ps", STOKER_DEBUG="1").stderr


def test_a_reader_that_goes_away_is_no_error(connected: dict[str, str], fake: Fake) -> None:
    """`stoker ps -a | head -1`"""
    fake.add(*(run(f"run-{number}") for number in range(3000)))
    pipe = f"{' '.join(command('ps', '-a', '--json'))} | head -1; exit ${{PIPESTATUS[0]}}"
    told = subprocess.run(["bash", "-c", pipe], env=connected, capture_output=True, cwd=ROOT)
    assert told.stderr == b""
    assert told.returncode == 141


def test_completion_knows_commands_and_runs(connected: dict[str, str], fake: Fake) -> None:
    fake.add(run("train-1"), run("train-2"), run("other"))

    def complete(words: str) -> set[str]:
        env = {
            **connected,
            "_STOKER_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        told = call(env)
        return {line.partition(",")[2] for line in told.stdout.decode().splitlines()}

    assert {"stop", "server"} <= complete("stoker s")
    assert "shim" not in complete("stoker s")
    assert complete("stoker logs tr") == {"train-1", "train-2"}
    for shell in ("bash", "zsh", "fish"):
        assert b"_STOKER_COMPLETE" in call(connected, "completion", shell).stdout


def test_examples_in_the_help_name_files_that_exist() -> None:
    for _, one in commands():
        for word in getattr(one, "example", "").split():
            if word.startswith("examples/"):
                assert (Path(ROOT) / word).exists(), word


def test_output_that_cannot_be_written_is_no_mistake_of_ours(connected: dict[str, str], fake: Fake) -> None:
    """`stoker ps > report` on a full disk, or `>&-`."""
    fake.add(run("train", status="RUNNING"))
    with open("/dev/full", "wb") as full:
        told = subprocess.run(command("ps"), env=connected, stdout=full, stderr=subprocess.PIPE, cwd=ROOT, timeout=30)
    assert (told.returncode, told.stderr) == (1, b"Error: It cannot be written: there is no space left.\n")
    shell = ["sh", "-c", '"$@" >&- 2>&-', "sh", *command("ps")]
    assert subprocess.run(shell, env=connected, cwd=ROOT, timeout=30).returncode == 0
