"""`stoker apply` and `stoker run`: from what a person wants to a run, and its log on the screen."""

import os
import shlex
import sys
import uuid
from typing import Any

import click

from stoker.cli import screen
from stoker.cli.command import F, Session, command, json_option, pass_session
from stoker.cli.run import confirm
from stoker.client.client import Json
from stoker.core.errors import Conflict, UserError

MOST_SHOWN = 3
"""Commands of a plan; a file of a hundred lines is not shown again."""


def run_options(function: F) -> F:
    for option in (
        click.option("-d", "--detach", is_flag=True, help="Do not wait for its end; print its name."),
        click.option("--timestamps", "-t", is_flag=True, help="Put the time before each line of the log."),
        json_option,
    ):
        function = option(function)
    return function


@command(
    "apply",
    short_help="Run what a configuration file describes.",
    example="""
    stoker apply -f examples/hello.yaml
    stoker apply -f train.yaml -y -d          # no question, in the background
    stoker apply -f train.yaml --dry-run      # what would happen
    make-task | stoker apply -y -f -          # YAML or JSON from a program
    """,
)
@click.option("-f", "--file", metavar="FILE", required=True, help="YAML or JSON; - reads stdin.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("-n", "--name", metavar="NAME", help="Instead of the name in the file.")
@click.option("--dry-run", is_flag=True, help="Show what would happen, and do nothing.")
@run_options
@pass_session
def apply(
    session: Session,
    file: str,
    yes: bool,
    name: str | None,
    dry_run: bool,
    detach: bool,
    timestamps: bool,
    as_json: bool,
) -> None:
    """Run what a configuration file describes.

    Shows what would happen and asks, then follows the log. The exit code is the job's own when it failed by itself;
    else 0 done, 100 failed, 101 left before its end, 102 not found, 103 stopped. Ctrl-C asks whether to leave it
    running or to stop it.
    """
    configuration = read(file) | ({"name": name} if name else {})
    plan = planned(session, configuration, quiet=as_json)
    if dry_run:
        if as_json:
            screen.show_json(plan)
        return
    if plan["action"] != "refuse":
        confirm(
            f"{'Submit it anyway' if plan['action'] == 'fail' else 'Run it'}?", yes, default=plan["action"] != "fail"
        )
    submit(session, configuration, plan, detach=detach, timestamps=timestamps, as_json=as_json)


@command(
    "run",
    short_help="Run a command.",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    example="""
    stoker run -- python -c 'print(6 * 7)'
    stoker run 'echo $STOKER_RUN_NAME | rev'        # one argument is a line for the shell
    stoker run --name train --gpu 1 -e HF_TOKEN -C . -d -- python train.py
    """,
)
@click.option("-n", "--name", metavar="NAME", help="One is made up unless you say.")
@click.option("-e", "--env", metavar="NAME[=VALUE]", multiple=True, help="Without a value it takes yours.")
@click.option("-C", "--working-dir", metavar="DIR", help="Where it runs; else in a directory of its own.")
@click.option("--cpu", metavar="N", help="CPUs, at least.")
@click.option("--memory", metavar="SIZE", help="At least, e.g. 8GB.")
@click.option("--gpu", metavar="GPU", help="E.g. 1, A100:2, 24GB..")
@click.option("--shell", metavar="SHELL", help="sh unless you say.")
@click.option("--tty", is_flag=True, help="Give it a terminal: progress bars, colours.")
@click.option("--priority", metavar="N", type=int, help="0 to 100; higher is placed first.")
@click.option("--max-duration", metavar="TIME", help="Stop it after so long, e.g. 2h.")
@click.option("--fail-fast", is_flag=True, help="Fail rather than wait when there is no room.")
@click.option("-y", "--yes", is_flag=True, hidden=True, help="It does not ask anyway.")
@run_options
@click.argument("words", metavar="COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@pass_session
def run(
    session: Session,
    /,
    words: tuple[str, ...],
    yes: bool,
    fail_fast: bool,
    detach: bool,
    timestamps: bool,
    as_json: bool,
    env: tuple[str, ...],
    working_dir: str | None,
    **said: Any,
) -> None:
    """Run a command. Like `apply` without a file, and without a question.

    Several words are a program and its arguments; a single one is a line for the shell.
    """
    resources = {key: said.pop(key) for key in ("cpu", "memory", "gpu")}
    asked = {
        **said,
        "type": "task",
        "commands": [words[0] if len(words) == 1 else shlex.join(words)],
        "env": list(env) or None,
        "working_dir": os.path.abspath(working_dir) if working_dir else None,
        "tty": said["tty"] or None,
        "resources": {key: value for key, value in resources.items() if value is not None} or None,
        "on_no_capacity": "fail" if fail_fast else None,
    }
    configuration = checked({key: value for key, value in asked.items() if value is not None})
    plan = planned(session, configuration, quiet=as_json or detach)
    submit(session, configuration, plan, detach=detach, timestamps=timestamps, as_json=as_json)


def read(file: str) -> Json:
    """Checked here, where the lines are known, and with the caller's own variables filled in."""
    from stoker.wire.configuration import load

    return _to_json(load, _text(file), "stdin" if file == "-" else file)


def checked(given: Json) -> Json:
    from stoker.wire.configuration import parse

    return _to_json(parse, given, "")


def _to_json(reader: Any, given: object, where: str) -> Json:
    from stoker.wire.configuration import to_json, with_env
    from stoker.wire.model import Invalid
    from stoker.wire.yaml import BadYaml

    at = f"{where}: " if where else ""
    try:
        return to_json(with_env(reader(given), os.environ))
    except Invalid as error:
        lines = [f"{at}{problem}.{f' {problem.hint}' if problem.hint else ''}" for problem in error.problems]
        raise UserError("\n       ".join(lines), code=error.code) from None
    except BadYaml as error:
        raise UserError(f"{at}{error.sentence}", hint=error.hint, code=error.code) from None


def _text(file: str) -> bytes:
    from stoker.core.limits import MOST_FILE_BYTES

    try:
        if file == "-":
            return sys.stdin.buffer.read(MOST_FILE_BYTES + 1)
        with open(file, "rb") as opened:
            return opened.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None


def planned(session: Session, configuration: Json, *, quiet: bool) -> Json:
    from stoker.client import run as runs

    plan = runs.plan(session.client, configuration)
    if not quiet:
        name, commands = plan["name"] or "a task", configuration["commands"]
        more = [f"… and {len(commands) - MOST_SHOWN} more"] if len(commands) > MOST_SHOWN else []
        shown = [f"  {line}" for each in commands[:MOST_SHOWN] for line in each.splitlines()[:MOST_SHOWN]]
        title = screen.paint(name, "", sys.stderr, bold=True)
        screen.note("\n".join([f"{title}: {plan['sentence']}", *shown, *more]))
    return plan


def submit(session: Session, configuration: Json, plan: Json, *, detach: bool, timestamps: bool, as_json: bool) -> None:
    """One key for all the tries, so that however often it is sent there is one run."""
    from stoker.cli.attach import Attached, conclude
    from stoker.cli.printer import Printer
    from stoker.client import run as runs

    if plan["action"] == "refuse":
        name = plan["name"]
        raise Conflict(
            plan["sentence"], hint=f"`stoker stop {name}` ends it, `stoker logs -f {name}` shows what it does."
        )
    submitted = runs.submit(session.client, configuration, expected=plan["expected"], key=str(uuid.uuid4()))
    if detach:
        if as_json:
            screen.show_json(submitted)
        else:
            screen.out(submitted["name"])
            screen.note(f"`stoker logs -f {submitted['name']}` shows its log.")
        return
    attached = Attached(session.client, submitted, None if as_json else Printer(timestamps=timestamps))
    code = attached.attend()
    if as_json:
        screen.show_json(attached.run)
    else:
        conclude(attached, session.now())
    raise click.exceptions.Exit(code)
