"""`stoker config`: which server you talk to, as whom, in which project."""

import click

from stoker.cli import screen
from stoker.cli.command import Session, group, json_option, pass_session, perhaps
from stoker.client.config import KEYS, Config, change, read

SHOWN_CHARS = 6
key_argument = click.argument("key", metavar="|".join(KEYS))


@group(
    "config",
    short_help="Show or set which server you talk to.",
    invoke_without_command=True,
    example="""
    stoker config
    stoker config set url http://10.0.0.5:4400
    stoker config set project vision
    """,
)
@json_option
@click.pass_context
def config(ctx: click.Context, as_json: bool) -> None:
    """Show or set which server you talk to, as whom, and in which project.

    Flags come before environment variables (STOKER_URL, STOKER_TOKEN, STOKER_PROJECT, STOKER_HOME), and those before
    HOME/config.yml, which `set` writes and `stoker up` makes.
    """
    if ctx.invoked_subcommand is not None:
        return
    found = ctx.ensure_object(Session).config
    values = {"home": str(found.home), "url": found.url, "token": _hidden(found.token), "project": found.project}
    if as_json:
        screen.show_json({key: {"value": value, "from": found.origins.get(key)} for key, value in values.items()})
        return
    rows = [(key, value, found.origins.get(key, "not set")) for key, value in values.items()]
    screen.out(screen.table(("KEY", "VALUE", "FROM"), rows))


def _hidden(token: str) -> str:
    """Enough to tell two apart, not enough to use one."""
    return f"{token[:SHOWN_CHARS]}…" if len(token) > 4 * SHOWN_CHARS else "…" if token else ""


@config.command("get", example="stoker config get url")
@key_argument
@pass_session
def get(session: Session, key: str) -> None:
    """Print one value as it is; the token too."""
    screen.out(str(getattr(session.config, _known(key, "home"))))


@config.command("set", example="stoker config set project vision")
@key_argument
@click.argument("value")
@pass_session
def set_(session: Session, key: str, value: str) -> None:
    """Write one value into HOME/config.yml."""
    if not value.strip():
        raise click.UsageError(f"An empty {key} means nothing; `stoker config unset {key}` removes it.")
    if _known(key) == "url":
        from stoker.client.client import Client

        Client(value, "", "")
    change(session.config.path, **{key: value.strip()})
    warn_of_variable(session.config, key)


@config.command("unset", example="stoker config unset token")
@key_argument
@pass_session
def unset(session: Session, key: str) -> None:
    """Remove one value from HOME/config.yml."""
    if read(session.config.path):
        change(session.config.path, **{_known(key): ""})


def _known(key: str, *also: str) -> str:
    if key not in (*KEYS, *also):
        raise click.UsageError(f"There is no key {key!r}.{perhaps(key, KEYS) or ' There are ' + ', '.join(KEYS) + '.'}")
    return key


def warn_of_variable(found: Config, key: str) -> None:
    origin = found.origins.get(key, "")
    if origin.startswith("STOKER_"):
        screen.note(f"{origin} is set, and comes before the file.")
