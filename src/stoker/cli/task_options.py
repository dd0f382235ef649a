"""What may be said of a task on the command line, and how tasks are named there."""

import os
from datetime import UTC, datetime
from typing import Any

import click

from stoker.cli import moment
from stoker.cli.command import F, Session
from stoker.client.configuration import filled, unset
from stoker.client.new_task import Options
from stoker.client.task import found
from stoker.client.task_watch import Which
from stoker.core.errors import UserError

_OPTIONS = (
    click.option("-n", "--name", metavar="NAME", help="Need not be unique."),
    click.option("-e", "--env", metavar="NAME[=VALUE]", multiple=True, help="Without a value it takes yours."),
    click.option("-C", "--cwd", metavar="DIR", help="Where it runs; else where its worker was started."),
    click.option("--stdin", metavar="TEXT", help="What it reads; else nothing."),
    click.option("--stdin-file", metavar="FILE", help="The same from a file."),
    click.option("--cpus", metavar="N", type=float, help="1 unless you say, also 0.5."),
    click.option("--memory", metavar="SIZE", help="E.g. 4GB; if it takes more it is killed."),
    click.option("--gpus", metavar="N", type=float, help="Whole ones, or a part of one."),
    click.option("--resource", metavar="NAME=N", multiple=True, help="Of what workers were given by name."),
    click.option("--or", "alternatives", metavar="NAME=N,...", multiple=True, help="Resources that would do as well."),
    click.option("--retries", metavar="N", type=click.IntRange(min=0), help="Further attempts when it fails."),
    click.option("--max-retry-count", metavar="N", type=int, help="Attempts in all, as the API counts them."),
    click.option("--crash-limit", metavar="N", type=int, help="Workers it may take down until it is held."),
    click.option("--priority", metavar="N", type=int, help="The highest is claimed first."),
    click.option("--after", metavar="TASK", multiple=True, help="Begin when this one has succeeded."),
    click.option("--group", metavar="NAME", help="To wait for them, or to cancel them, together."),
    click.option("--label", metavar="KEY=VALUE", multiple=True, help="To find them by."),
    click.option("--key", metavar="KEY", help="Of all tasks with it, only --limit run at a time."),
    click.option("--limit", metavar="N", type=int, help="How many; 1 unless you say."),
    click.option("--deadline", metavar="TIME", help="Cancel it then: in 2h, or at a moment."),
    click.option("--start-after", metavar="TIME", help="Not before: in 10m, or at a moment."),
    click.option("--estimated-runtime", metavar="TIME", help="Workers with less time left do not take it."),
    click.option("--grace", metavar="TIME", help="Between SIGTERM and SIGKILL; 10s unless you say."),
    click.option("--exclusive", is_flag=True, help="Stop it rather than risk that it runs twice."),
    click.option("--output", type=click.Choice(["server", "files", "none"]), help="Where stdout and stderr go."),
    click.option("--output-dir", metavar="DIR", help="With --output files, on the worker's host."),
)


def task_options(function: F) -> F:
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def options_of(session: Session, said: dict[str, Any]) -> tuple[Options, list[str], str | None]:
    """Of all that click gives for them: the options, the tasks to wait for, and the group."""
    now = session.now()
    asked: dict[str, Any] = {name: said[name] for name in ("name", "cpus", "memory", "gpus", "crash_limit", "priority")}
    asked |= {
        "env": _env(said["env"]),
        "working_dir": os.path.abspath(said["cwd"]) if said["cwd"] else None,
        "stdin": _stdin(said["stdin"], said["stdin_file"]),
        "resources": amounts(said["resource"]),
        "alternatives": [amounts(one.split(",")) for one in said["alternatives"]] or None,
        "max_retry_count": _attempts(said["retries"], said["max_retry_count"]),
        "labels": dict(map(label_of, said["label"])) or None,
        "concurrency_key": said["key"],
        "concurrency_limit": said["limit"],
        "deadline": later(said["deadline"], now) if said["deadline"] else None,
        "start_after": later(said["start_after"], now) if said["start_after"] else None,
        "estimated_runtime": moment.seconds_of(said["estimated_runtime"]) if said["estimated_runtime"] else None,
        "max_termination_time": moment.seconds_of(said["grace"]) if said["grace"] else None,
        "exclusive": said["exclusive"] or None,
        "output": said["output"],
        "output_dir": said["output_dir"],
    }
    if said["limit"] is not None and said["key"] is None:
        raise click.UsageError("--limit says how many of a --key may run.")
    kept: Any = {name: value for name, value in asked.items() if value is not None and value != {}}
    options: Options = kept
    after = [found(session.client, ref) for ref in said["after"]]
    return options, after, said["group"]


def _env(said: tuple[str, ...]) -> list[str] | None:
    try:
        made: list[str] | None = filled(list(said), os.environ) if said else None
    except KeyError as missing:
        raise unset(str(missing.args[0])) from None
    return made


def _stdin(text: str | None, file: str | None) -> str | None:
    if file is None:
        return text
    if text is not None:
        raise click.UsageError("Say --stdin or --stdin-file.")
    try:
        with click.open_file(file, "rb") as opened:
            data: bytes = opened.read()
        return data.decode()
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise UserError(f"{file} is not UTF-8 text.", hint="Let the command itself open it.") from None


def _attempts(retries: int | None, attempts: int | None) -> int | None:
    if retries is None:
        return attempts
    if attempts is not None:
        raise click.UsageError("Say --retries or --max-retry-count.")
    return retries + 1


def amounts(said: tuple[str, ...] | list[str]) -> dict[str, float | str]:
    """`cpus=2` and `memory=4GB`; what they mean is the server's to say."""
    made: dict[str, float | str] = {}
    for one in said:
        name, equals, amount = one.partition("=")
        if not name or not equals:
            raise click.UsageError(f"{one!r} is no resource; write it as NAME=N, for example licence=1.")
        try:
            number = float(amount)
            made[name.strip()] = int(number) if number == int(number) else number
        except (ValueError, OverflowError):
            made[name.strip()] = amount
    return made


def label_of(said: str) -> tuple[str, str]:
    key, equals, value = said.partition("=")
    if not key or not equals:
        raise click.UsageError(f"{said!r} is no label; write it as KEY=VALUE.")
    return key, value


def later(text: str, now: float) -> str:
    """A moment to come that a person typed: in how long, or a time."""
    try:
        at = now + moment.seconds_of(text)
    except UserError:
        try:
            at = datetime.fromisoformat(text).timestamp()
        except ValueError:
            hint = "For example: 10m, or 2026-05-01T12:00:00Z."
            raise UserError(f"{text!r} is neither a length of time nor a moment.", hint=hint) from None
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


def which_options(function: F) -> F:
    """Which tasks are looked at: some, a group, or a label; statistics are kept of these."""
    function = click.option("--label", metavar="KEY=VALUE", help="Those with this label.")(function)
    function = click.option("--group", metavar="NAME", help="Those of this group.")(function)
    return click.argument("refs", metavar="[TASK]...", nargs=-1)(function)


def which_of(session: Session, refs: tuple[str, ...], group: str | None, label: str | None, *, needed: bool) -> Which:
    said = sum(map(bool, (refs, group, label)))
    if said > 1 or (needed and not said):
        raise click.UsageError("Name tasks, or a --group, or a --label.")
    if label is not None:
        label_of(label)
    return Which(tuple(found(session.client, ref) for ref in refs), group, label)
