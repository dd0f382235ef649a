"""`stoker task add`, `map` and `load`: from what a person wants to tasks that the server keeps."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from uuid import uuid4

import click

from stoker.cli import screen
from stoker.cli.command import F, Session, command, json_option, pass_session
from stoker.cli.task_options import options_of, task_options
from stoker.cli.task_wait import attend
from stoker.client import task as tasks
from stoker.client.fresh_ids import fresh_ids
from stoker.client.new_task import Template, command_of, new_task
from stoker.client.task_watch import Which
from stoker.client.upload import line as as_line
from stoker.core.errors import StokerError, UserError
from stoker.core.limits import MOST_FILE_BYTES, MOST_TASKS_IN_A_GRAPH

OWN_WORDS: Final = {"allow_interspersed_args": False}
"""What stands behind the first word of the command belongs to it."""
JSON_LINES: Final = (".jsonl", ".ndjson")
REFUSED: Final = ("configuration", "invalid")
UNASKED: Final = ("unreachable", "timeout", "not_configured")


def after_options(function: F) -> F:
    for option in (
        click.option("-w", "--wait", "waits", is_flag=True, help="Wait for the end; exit as `stoker task wait` does."),
        click.option("-q", "--quiet", is_flag=True, help="Print the name of it, and say nothing."),
        json_option,
    ):
        function = option(function)
    return function


@command(
    "add",
    short_help="Add a task.",
    context_settings=OWN_WORDS,
    example="""
    stoker task add -- ./prepare.sh --all
    stoker task add 'sort data | uniq > out'                     # one argument is a line for the shell
    first=$(stoker task add -q --cpus 2 --memory 4GB -- ./build)
    stoker task add --after $first --retries 2 -w -- ./check     # when that has succeeded
    """,
)
@task_options
@click.option("--barrier", is_flag=True, help="Run nothing: others may wait for it, as it does for --after.")
@after_options
@click.argument("words", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED)
@pass_session
def add(
    session: Session,
    /,
    words: tuple[str, ...],
    barrier: bool,
    waits: bool,
    quiet: bool,
    as_json: bool,
    **said: Any,
) -> None:
    """Add a task: a command that a worker will run. Prints its id.

    Several words are a program and its arguments; a single one is a line for the shell. The command finds its id in
    STOKER_TASK_ID; what it writes into the file STOKER_RESULT is kept as its result.
    """
    if barrier == bool(words):
        raise click.UsageError("Say the command, or --barrier for a task without one.")
    options, after, group = options_of(session, said)
    task = new_task(command_of(words) if words else None, options, after=after, group=group)
    created = tasks.add(session.client, task, key=str(uuid4()))
    id = str(created["ids"][0])
    if as_json and not waits:
        screen.show_json(created)
    elif not as_json:
        screen.out(id)
        if not quiet and not waits and not barrier:
            screen.note(f"`stoker task logs -f {id}` shows what it writes, once a worker has taken it.")
    if waits:
        _wait(session, Which(ids=(id,)), as_json)


@command(
    "map",
    short_help="Add a task for each line of a file, or each number of a range.",
    context_settings=OWN_WORDS,
    example="""
    stoker task map --range 1..1000 -- python train.py --seed {}
    ls *.wav | stoker task map -w -- ffmpeg -i {} {}.mp3
    stoker task map -a names.txt --group greet 'echo {n}: hello {} | rev'
    stoker task map -a urls.txt --key web --limit 4 --retries 3 -- curl -fsSO
    """,
)
@task_options
@click.option("-a", "--arg-file", metavar="FILE", help="Lines to take; else those of stdin.")
@click.option("--range", "numbers", metavar="A..B[..STEP]", help="Numbers to take, the last one included.")
@after_options
@click.argument("words", metavar="COMMAND...", nargs=-1, type=click.UNPROCESSED, required=True)
@pass_session
def map_(
    session: Session,
    /,
    words: tuple[str, ...],
    arg_file: str | None,
    numbers: str | None,
    waits: bool,
    quiet: bool,
    as_json: bool,
    **said: Any,
) -> None:
    """Add a task for each line of a file, of stdin, or each number of a range. Prints the group that they are in.

    `{}` in the command and in --name stands for the line, `{n}` for its number; where the command has no `{}` the line
    is its last argument. A single word is a line for the shell; what is put into it is quoted. Empty lines are left
    out. All of them are added at once, or none; a million are no trouble.
    """
    if numbers is not None and arg_file is not None:
        raise click.UsageError("Say --arg-file or --range.")
    if numbers is None and arg_file is None and sys.stdin.isatty():
        screen.note("Reading lines from the terminal; Ctrl-D ends them.")
    options, after, group = options_of(session, said)
    group = group or f"map-{uuid4().hex[:8]}"
    template = Template(command_of(words), new_task(None, options, after=after, group=group))
    inputs = _numbers(numbers) if numbers is not None else _lines(arg_file or "-")
    _send(session, tasks_of(template, inputs), {group}, waits, quiet, as_json)


def tasks_of(template: Template, inputs: Iterable[tuple[int, str]]) -> Iterator[bytes]:
    """Their ids are in the order of the inputs, and so is every list of them."""
    ids = fresh_ids()
    return (as_line({"id": next(ids)} | template.filled(text, number)) for number, text in inputs)


@command(
    "load",
    short_help="Add the tasks that a file describes.",
    example="""
    stoker task load graph.yaml
    stoker task load graph.jsonl -w                # a task each line, any number of them
    ./make-graph | stoker task load --group nightly -
    """,
)
@click.argument("file", metavar="FILE")
@click.option("--group", metavar="NAME", help="For tasks that name none; made up unless somebody says.")
@click.option("--dry-run", is_flag=True, help="Read it, say how many tasks it has, and add nothing.")
@after_options
@pass_session
def load(
    session: Session, file: str, group: str | None, dry_run: bool, waits: bool, quiet: bool, as_json: bool
) -> None:
    """Add the tasks that a file describes: all of them, or none. Prints the group that they are in.

    A .jsonl file has a task in each line, as the API takes it, and may be as long as you like. Everything else is YAML
    with a list of `tasks`. `depends_on` of a task names those that it waits for, by `ref`, by name, or by id. - reads
    stdin, which is YAML if it does not begin with `{`.

    \b
    tasks:
      - name: prepare
        command: ./prepare.sh
      - command: [./train, --seed, "1"]
        depends_on: [prepare]
    """
    from stoker.client.graph_file import read_lines, read_yaml

    made_up, name, groups = f"load-{uuid4().hex[:8]}", "stdin" if file == "-" else file, set[str]()
    with _opened(file) as opened:
        if file.endswith(JSON_LINES) or (file == "-" and opened.peek(1)[:1] == b"{"):
            lines = read_lines(opened, name, group=group or made_up, groups=groups)
            if dry_run:
                _would(sum(map(bool, lines)), groups, as_json)
            else:
                with _placed(name):
                    _send(session, lines, groups, waits, quiet, as_json)
            return
        graph = read_yaml(opened.read(MOST_FILE_BYTES + 1), name, group=group, otherwise=made_up)
    groups = {str(task["group"]) for task in graph.tasks}
    try:
        if dry_run:
            mistaken = graph.explained()
            if mistaken is not None:
                raise mistaken
            _would(len(graph.tasks), groups, as_json)
        else:
            _send(session, graph.lines(), groups, waits, quiet, as_json)
    except StokerError as error:
        if dry_run or error.code not in (*REFUSED, *UNASKED):
            raise
        raise graph.explained() or error from None


@contextmanager
def _placed(name: str) -> Iterator[None]:
    """The server counts lines as we do, and does not know whose they are."""
    try:
        yield
    except UserError as error:
        if not error.sentence.lower().startswith("line "):
            raise
        sentence = error.sentence[:1].lower() + error.sentence[1:]
        raise UserError(f"{name}: {sentence}", hint=error.hint, code=error.code) from None


def _would(count: int, groups: set[str], as_json: bool) -> None:
    if as_json:
        screen.show_json({"count": count, "groups": sorted(groups)})
    else:
        screen.out(f"{_tasks(count)} would be added.")


def _send(session: Session, lines: Iterable[bytes], groups: set[str], waits: bool, quiet: bool, as_json: bool) -> None:
    """One key for all the tries, so that however often it is sent there is one of each. The groups are known when all
    lines have passed."""
    created = tasks.add_lines(session.client, lines, key=str(uuid4()))
    if created is None:
        raise UserError("There was nothing to add: the input is empty.")
    group = next(iter(groups)) if len(groups) == 1 else None
    if as_json and not waits:
        screen.show_json(created | {"groups": sorted(groups)})
    elif not as_json:
        for one in sorted(groups):
            screen.out(one)
        if not quiet:
            hint = "" if waits or group is None else f" `stoker task wait --group {group}` waits for them."
            screen.note(f"{_tasks(created['count'])} in {group or f'{len(groups)} groups'}.{hint}")
    if not waits:
        return
    if group is None and not created["ids"]:
        raise UserError("They are added, but in several groups.", hint="`stoker task wait --group` waits for one.")
    _wait(session, Which(group=group) if group else Which(ids=tuple(created["ids"])), as_json)


def _tasks(count: int) -> str:
    return "One task" if count == 1 else f"{count:,} tasks"


def _wait(session: Session, which: Which, as_json: bool) -> None:
    raise click.exceptions.Exit(attend(session, which, as_json=as_json))


def _opened(file: str) -> Any:
    """As a buffered reader of bytes."""
    if file == "-":
        return sys.stdin.buffer
    try:
        return open(file, "rb")
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None


def _lines(file: str) -> Iterator[tuple[int, str]]:
    with _opened(file) as opened:
        for number, line in enumerate(opened, start=1):
            text = line.rstrip(b"\r\n")
            if not text.strip():
                continue
            try:
                yield number, text.decode()
            except UnicodeDecodeError:
                raise UserError(f"{'stdin' if file == '-' else file}: line {number} is not UTF-8 text.") from None


def _numbers(said: str) -> Iterator[tuple[int, str]]:
    try:
        first, last, *step = (int(part) for part in said.split(".."))
        values = range(first, last + (1 if first <= last else -1), *(step or [1 if first <= last else -1]))
    except ValueError:
        raise click.UsageError(f"{said!r} is no range; write it as 1..1000, or 0..100..5.") from None
    if len(values) > MOST_TASKS_IN_A_GRAPH:
        raise UserError(f"{said} has {len(values):,} numbers, at most {MOST_TASKS_IN_A_GRAPH:,} are taken at once.")
    return enumerate(map(str, values), start=1)
