"""How commands are made: each reaches the server the same way, has an example, and loads only what it needs."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from stoker.cli import screen
from stoker.core.errors import NotFound

if TYPE_CHECKING:
    from stoker.client.client import Client
    from stoker.client.config import Config

F = TypeVar("F", bound=Callable[..., Any])

FLAGS: Final = {
    "home": ("--home", "DIR", "Where this machine's server keeps its data, and you your configuration."),
    "url": ("--url", "URL", "The server to talk to."),
    "token": ("--token", "TOKEN", "Who you are. Better in STOKER_TOKEN: other users see your flags."),
    "project": ("--project", "NAME", "The project to work in."),
}
"""May stand before the command and behind it; `stoker --help` tells of them."""


class Session:
    """What the flags said, and what is made of it once somebody needs it."""

    def __init__(self) -> None:
        self.flags: dict[str, str] = {}

    @cached_property
    def config(self) -> "Config":
        from stoker.client.config import resolve

        return resolve(os.environ, **self.flags)

    @cached_property
    def client(self) -> "Client":
        from stoker.client.client import Client

        client = Client.of(self.config)
        client.warn = lambda sentence: screen.note(f"{screen.paint('Warning:', 'yellow', sys.stderr)} {sentence}")
        return client

    def now(self) -> float:
        return time.time()


pass_session = click.make_pass_decorator(Session, ensure=True)


def _remember(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None and param.name is not None:
        ctx.ensure_object(Session).flags[param.name] = value


def flags(*, hidden: bool) -> list[click.Parameter]:
    return [
        click.Option([flag], metavar=metavar, help=said, hidden=hidden, expose_value=False, callback=_remember)
        for flag, metavar, said in FLAGS.values()
    ]


class Command(click.Command):
    """A command that talks to a server; its help ends with examples."""

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        self.params += flags(hidden=True)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        show_examples(self.example, formatter)
        super().format_epilog(ctx, formatter)


def show_examples(example: str, formatter: click.HelpFormatter) -> None:
    with formatter.section("Examples"):
        for line in example.strip().splitlines():
            formatter.write(f"{'':>{formatter.current_indent}}{line.strip()}\n")


def command(name: str, *, example: str, **kwargs: Any) -> Callable[[Callable[..., Any]], Command]:
    return click.command(name, **{"cls": Command} | kwargs, example=example)


class Group(click.Group):
    """Commands about one noun, in one file."""

    command_class = Command

    def __init__(self, *args: Any, example: str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.example = example
        self.params += flags(hidden=True)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        show_examples(self.example, formatter)


def group(name: str, *, example: str, **kwargs: Any) -> Callable[[Callable[..., Any]], Group]:
    return click.group(name, cls=Group, example=example, **kwargs)


class Lazy(click.Group):
    """A group that knows its commands by name and imports one when it is called."""

    def __init__(self, *args: Any, table: Mapping[str, Mapping[str, tuple[str, str]]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table
        """Section, then command, then (module, short help)."""
        self._where = {name: where for section in table.values() for name, where in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for section, entries in self.table.items() if section for name in entries]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._where:
            return None
        found = getattr(import_module(self._where[cmd_name][0]), cmd_name)
        assert isinstance(found, click.Command)
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self._where and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"There is no command {name!r}.{perhaps(name, self._where)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(len(name) for name in self._where)
        for section, entries in self.table.items():
            if section:
                with formatter.section(section):
                    formatter.write_dl([(name.ljust(width), said) for name, (_, said) in entries.items()])


def perhaps(name: str, known: Sequence[str] | Mapping[str, object]) -> str:
    """` Did you mean …?`, when something known is near."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), n=3, cutoff=0.5)
    return f" Did you mean {' or '.join(near)}?" if near else ""


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of runs for the shell; a server that does not answer gives none."""
    from stoker.client import run
    from stoker.core.errors import StokerError

    try:
        runs = run.listed(ctx.find_root().ensure_object(Session).client, most=100)
        return list(dict.fromkeys(each["name"] for each in runs if each["name"].startswith(incomplete)))
    except StokerError:
        return []


def known_form(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """Refuses what can be neither a name nor an id: in an address it would mean something else."""
    for one in (value,) if isinstance(value, str) else value or ():
        if "/" in one or not any(sign.isalnum() for sign in one):
            raise click.BadParameter(f"{one!r} is no name of a run, and no id.")
    return value


def run_argument(function: F) -> F:
    return click.argument("run", metavar="RUN", shell_complete=complete_run, callback=known_form)(function)


@contextmanager
def suggesting(session: Session, *names: str) -> Iterator[None]:
    """When there is no such run, the error names those that are near."""
    from stoker.client import run

    try:
        yield
    except NotFound as error:
        known = {each["name"] for each in run.listed(session.client, most=500)}
        near = "".join(perhaps(name, sorted(known)) for name in names if name not in known)
        raise NotFound(error.sentence, hint=near.strip() or error.hint, code=error.code) from None
