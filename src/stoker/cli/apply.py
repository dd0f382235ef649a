"""`stoker apply` and `stoker run`: from what a person wants to a run, and its log on the screen."""

import os
import shlex
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from stoker.cli import screen
from stoker.cli.attach import Attached, Interrupts, conclude
from stoker.cli.command import Command, F, Session, command, json_option, pass_session
from stoker.cli.fleet import apply_fleet
from stoker.cli.printer import Printer
from stoker.cli.run import confirm, hint_of, show_numbers
from stoker.cli.volume import apply_volume
from stoker.client import run as runs
from stoker.client.client import Json, Refused, Unreachable
from stoker.client.configuration import Written, alone, filled, read, unset
from stoker.client.identity import keys_of
from stoker.client.profile import chosen, merged
from stoker.core.errors import Conflict, UserError
from stoker.core.limits import MOST_FILE_BYTES

LEAST: Final = {"type": "task", "commands": ["true"]}
"""What a profile lacks to be a task."""
WORDS: Final = "stoker.words"
MOST_SHOWN = 8
"""Lines of commands in a plan; a file of a hundred is not shown again."""
REFUSED = ("configuration", "invalid", "yaml")
"""What the server says of a configuration that it does not understand."""
MOST_TRIES: Final = 5
"""To change a run whose jobs come and go meanwhile."""
UNASKED: Final = ("unreachable", "timeout", "not_configured")
"""No server has looked at it. What is wrong with the file is said first: it has to be mended in any case."""


def run_options(function: F) -> F:
    for option in (
        click.option("-d", "--detach", is_flag=True, help="Do not wait for its end; print its name."),
        click.option("--profile", metavar="NAME", help="Of .stoker/profiles.yml; `none` for none."),
        click.option("--timestamps", "-t", is_flag=True, help="Put the time before each line of the log."),
        json_option,
    ):
        function = option(function)
    return function


class Apply(Command):
    """Words behind `--` are for the file, and no files."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, after = (args[: args.index("--")], args[args.index("--") + 1 :]) if "--" in args else (args, [])
        ctx.meta[WORDS] = tuple(after)
        return super().parse_args(ctx, before)


@command(
    "apply",
    short_help="Run, or make, what a configuration file describes.",
    example="""
    stoker apply -f examples/hello.yaml
    stoker apply -f fleet.yaml                # makes the fleet, or changes it in place
    stoker apply -f train.yaml -y -d          # no question, in the background
    stoker apply -f train.yaml --dry-run      # what would happen
    stoker apply -f train.yaml --profile gpu  # over a profile of .stoker/profiles.yml
    stoker apply -f train.yaml -- --lr 3e-4   # ${{ run.args }} in the file
    make-task | stoker apply -y -f -          # YAML or JSON from a program
    """,
    cls=Apply,
)
@click.option("-f", "--file", metavar="FILE", help="YAML or JSON; - reads stdin.")
@click.argument("stray", metavar="", nargs=-1)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("-n", "--name", metavar="NAME", help="Instead of the name in the file.")
@click.option("--dry-run", is_flag=True, help="Show what would happen, and do nothing.")
@run_options
@pass_session
def apply(
    session: Session,
    file: str | None,
    stray: tuple[str, ...],
    yes: bool,
    name: str | None,
    dry_run: bool,
    detach: bool,
    timestamps: bool,
    profile: str | None,
    as_json: bool,
) -> None:
    """Run what a configuration file describes; of `type: fleet` or `volume`, make it or change it in place.

    Shows what would happen and asks, then follows the log. The exit code is the job's own when it failed by itself;
    else 0 done, 100 failed, 101 left before its end, 102 not found, 103 stopped. Ctrl-C asks whether to leave it
    running or to stop it.

    A file whose name is that of an unfinished run changes that run in place, where only such keys differ as may
    (priority, limits, schedule, hold and others: the reference of a task lists them); other changes are refused.
    What has a schedule, or is held, is not waited for.

    `${{ env.X }}` in names, commands, setup, env, working_dir, image and registry_auth is your variable X,
    `${{ run.args }}` the words behind `--`.
    """
    if file is None or stray:
        raise click.UsageError(f"Name one file with -f: stoker apply -f {stray[0] if stray else 'FILE'}")
    text, where = text_of(file), "stdin" if file == "-" else file
    directory = Path(file).absolute().parent if file != "-" else Path.cwd()
    words = click.get_current_context().meta[WORDS]
    written = read(text, where, os.environ, words, chosen(profile, directory, session.config.home))
    configuration = written.given | ({"name": name} if name else {})
    if configuration.get("type") == "fleet":
        with _explaining(written):
            keys = keys_of(configuration, written, directory)
            apply_fleet(session, configuration, keys, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    if configuration.get("type") == "volume":
        with _explaining(written):
            apply_volume(session, configuration, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    with _explaining(written):
        plan = runs.plan(session.client, configuration)
    if not _worth_asking(plan, configuration, dry_run=dry_run, as_json=as_json):
        return
    if plan["action"] in ("update", "unchanged"):
        if plan["action"] == "update":
            confirm("Change it?", yes, default=True)
        _update(session, configuration, plan, as_json)
        return
    useless = plan["action"] == "fail"
    confirm("Submit it anyway?" if useless else "Run it?", yes, default=not useless)
    submit(session, configuration, plan["expected"], detach=detach, timestamps=timestamps, as_json=as_json)


def _worth_asking(plan: Json, configuration: Json, *, dry_run: bool, as_json: bool) -> bool:
    """Shows what would happen; whether that is to be done is then for people to say."""
    if not as_json:
        _show_plan(plan, configuration)
    elif dry_run:
        screen.show_json(plan)
    if dry_run:
        if not as_json and plan.get("why"):
            show_numbers(plan["why"] | {"limit": ""})
        return False
    if plan["action"] == "refuse":
        name = plan["name"]
        hint = f"`stoker stop {name}` ends it, `stoker logs -f {name}` shows what it does; or choose another name."
        raise Conflict(plan["sentence"], hint=hint)
    return True


@command(
    "run",
    short_help="Run a command.",
    context_settings={"allow_interspersed_args": False},
    example="""
    stoker run -- python3 -c 'print(6 * 7)'
    stoker run 'echo $STOKER_RUN_NAME | rev'        # one argument is a line for the shell
    stoker run --image alpine -- cat /etc/os-release
    stoker run --name train --gpu 1 -e HF_TOKEN -e PATH -C . -d -- python train.py
    """,
)
@click.option("-n", "--name", metavar="NAME", help="One is made up unless you say.")
@click.option("-e", "--env", metavar="NAME[=VALUE]", multiple=True, help="Without a value it takes yours.")
@click.option("-C", "--working-dir", metavar="DIR", help="Where it runs; else in a directory of its own.")
@click.option("--cpu", metavar="N", help="CPUs, at least.")
@click.option("--memory", metavar="SIZE", help="At least, e.g. 8GB.")
@click.option("--gpu", metavar="GPU", help="E.g. 1, A100:2, 24GB..")
@click.option("--image", metavar="IMAGE", help="Run it in a container of this image.")
@click.option("-v", "--volume", metavar="NAME:/PATH", multiple=True, help="What it finds where; :ro only to read.")
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
    profile: str | None,
    env: tuple[str, ...],
    volume: tuple[str, ...],
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
        "env": _env(env),
        "volumes": list(volume) or None,
        "working_dir": os.path.abspath(working_dir) if working_dir else None,
        "tty": said["tty"] or None,
        "resources": {key: value for key, value in resources.items() if value is not None} or None,
        "on_no_capacity": "fail" if fail_fast else None,
    }
    configuration = {key: value for key, value in asked.items() if value is not None}
    found = chosen(profile, Path.cwd(), session.config.home)
    below = None if found is None else alone(found, os.environ)
    if below is not None:
        configuration = merged(below.given, configuration)
    try:
        submit(session, configuration, None, detach=detach, timestamps=timestamps, as_json=as_json)
    except UserError as error:
        if below is None or error.code not in REFUSED:
            raise
        # What the profile says is told with its line; what the flags say as the server says it.
        raise replace(below, given=LEAST | below.given).explained() or error from None


def _update(session: Session, configuration: Json, plan: Json, as_json: bool) -> None:
    """Changes a run in place. Its version grows with its jobs too: where what would change is still the same, it is
    meant."""
    key = str(uuid.uuid4())
    for _ in range(MOST_TRIES):
        if plan["action"] == "unchanged":
            run = runs.get(session.client, plan["name"])
            break
        try:
            run = _submitted(session, configuration, plan["expected"], key)
            break
        except Conflict as error:
            if error.code != "changed":
                raise
            again = runs.plan(session.client, configuration)
            if again["action"] != "unchanged" and again.get("changes") != plan.get("changes"):
                raise
            plan = again
    else:
        raise Conflict(f"{plan['name']} changes all the time.", hint="Try it again.")
    if as_json:
        screen.show_json(run)
    else:
        screen.out(run["name"])


def _env(said: tuple[str, ...]) -> list[str] | None:
    try:
        return filled(list(said), os.environ) if said else None
    except KeyError as missing:
        raise unset(str(missing.args[0])) from None


def text_of(file: str) -> bytes:
    try:
        if file == "-":
            return sys.stdin.buffer.read(MOST_FILE_BYTES + 1)
        with open(file, "rb") as opened:
            return opened.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None


@contextmanager
def _explaining(written: Written) -> Iterator[None]:
    """What is wrong with the file is said with its lines, which the server does not know."""
    try:
        yield
    except (UserError, Unreachable) as error:
        if error.code not in REFUSED and error.code not in UNASKED:
            raise
        raise written.explained() or (written.located(error) if isinstance(error, Refused) else error) from None


def _show_plan(plan: Json, configuration: Json) -> None:
    groups = configuration.get("groups") or ()
    commands = [each for one in (configuration, *groups) for each in one.get("commands") or ()]
    lines = [line for each in commands for line in str(each).splitlines()]
    more = [f"  … and {len(lines) - MOST_SHOWN} more lines"] if len(lines) > MOST_SHOWN else []
    title = screen.paint(plan["name"] or "A task", "", sys.stderr, bold=True)
    if plan["action"] in ("update", "unchanged", "refuse"):
        changes = [f"  {one['key']}: {_said(one['old'])} -> {_said(one['new'])}" for one in plan.get("changes", ())]
        screen.note("\n".join([f"{title}: {plan['sentence']}", *changes]))
        return
    hint = [said] if (said := hint_of(plan.get("why") or {})) else []
    shown = (f"  {line}" for line in (*hint, *lines[:MOST_SHOWN]))
    screen.note("\n".join([f"{title}: {plan['sentence']}", *shown, *more]))


def _said(value: Any) -> str:
    """As it would be written in the file."""
    match value:
        case None:
            return "off"
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(map(_said, value))
    return str(value)


def submit(
    session: Session, configuration: Json, expected: Json | None, *, detach: bool, timestamps: bool, as_json: bool
) -> None:
    """One key for all the tries, so that however often it is sent there is one run."""
    key = str(uuid.uuid4())
    waits = bool(configuration.get("schedule") or configuration.get("hold"))
    if not detach and not waits:
        _attend(session, configuration, expected, key, timestamps, as_json)
    submitted = _submitted(session, configuration, expected, key)
    if as_json:
        screen.show_json(submitted)
    else:
        screen.out(submitted["name"])
        name, said = submitted["name"], submitted["status_message"]
        screen.note(f"{name}: {said}." if waits and said else f"`stoker logs -f {name}` shows its log.")


def _submitted(session: Session, configuration: Json, expected: Json | None, key: str) -> Json:
    try:
        return runs.submit(session.client, configuration, expected=expected, key=key)
    except UserError as error:
        if error.code not in REFUSED:
            raise
        # Where the server found it in the request means nothing to who typed flags.
        sentence, hint = (said.replace("configuration.", "") for said in (error.sentence, error.hint))
        raise UserError(sentence, hint=hint, code=error.code) from None


def _attend(
    session: Session, configuration: Json, expected: Json | None, key: str, timestamps: bool, as_json: bool
) -> NoReturn:
    with Interrupts() as interrupts:
        submitted = _submitted(session, configuration, expected, key)
        if not as_json:
            jobs = submitted.get("counts", {}).get("total", 1)
            many = f" It has {jobs} jobs; this is the log of the first." if jobs > 1 else ""
            screen.note(f"{submitted['name']} is submitted. Ctrl-C leaves or stops it.{many}")
        printer = None if as_json else Printer(timestamps=timestamps)
        attached = Attached(session.client, submitted, printer, interrupts)
        code = attached.attend()
    if as_json:
        screen.show_json(attached.run)
    else:
        conclude(attached, session.now())
    raise click.exceptions.Exit(code)
