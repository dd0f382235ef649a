"""`stoker volumes` and `stoker volume`: places for data that outlives jobs."""

import sys
from typing import Any

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, group, json_option, pass_session
from stoker.cli.run import confirm
from stoker.client.client import Json
from stoker.core import phrase

HEADERS = ("NAME", "KIND", "STATUS", "SIZE", "WHERE", "ATTACHED", "CREATED", "MESSAGE")
NONE = "There are no volumes; `stoker apply` of a file with `type: volume` makes one."


@command(
    "volumes",
    short_help="List the places for data that outlives jobs.",
    example="""
    stoker volumes
    stoker volumes data --json
    """,
)
@click.argument("volume", metavar="[NAME]", required=False)
@json_option
@pass_session
def volumes(session: Session, volume: str | None, as_json: bool) -> None:
    """List the volumes of the project, or show one."""
    if volume:
        _show(session, volume, as_json)
    else:
        _list(session, as_json)


@group(
    "volume",
    short_help="Places for data that outlives jobs: list, get, delete.",
    example="""
    stoker apply -f volume.yaml        # makes one
    stoker volume get data
    stoker volume delete data
    """,
)
def volume() -> None:
    """Places for data that outlives jobs. `stoker apply -f FILE` makes them, `volumes:` of a task mounts them."""


@volume.command("list", example="stoker volume list --json")
@json_option
@pass_session
def list_(session: Session, as_json: bool) -> None:
    """List those of the project."""
    _list(session, as_json)


@volume.command("get", example="stoker volume get data --json")
@click.argument("name")
@json_option
@pass_session
def get(session: Session, name: str, as_json: bool) -> None:
    """Show one: where it is, and which jobs have it."""
    _show(session, name, as_json)


@volume.command("delete", example="stoker volume delete data -y")
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def delete(session: Session, name: str, yes: bool, as_json: bool) -> None:
    """Delete a volume with all that is in it. Refused while a run wants it. What an nfs server has stays there."""
    confirm(f"Delete volume {name} with all that is in it?", yes)
    gone = session.client.ask("DELETE", session.client.at("volumes", name)).json()
    if as_json:
        screen.show_json(gone)
    else:
        screen.out(f"{name}  {gone['status'].lower()}")


def apply_volume(session: Session, configuration: Json, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Shows what would happen, asks, and does it."""
    client = session.client
    plan = client.post(client.at("volumes", "plan"), {"configuration": configuration})
    if not as_json:
        screen.note(screen.paint(plan["sentence"], "", sys.stderr, bold=True))
    elif dry_run:
        screen.show_json(plan)
    if dry_run:
        return
    if plan["action"] != "nothing":
        confirm("Make it?" if plan["action"] == "create" else "Change it?", yes, default=True)
    asked = {"configuration": configuration, "expected": plan["expected"]}
    applied = client.post(client.at("volumes"), asked)
    if as_json:
        screen.show_json(applied)
        return
    done = {"create": "made", "update": "changed", "nothing": "unchanged"}[plan["action"]]
    screen.out(f"{applied['name']}  {done}")


def _list(session: Session, as_json: bool) -> None:
    client = session.client
    found = list(client.items(client.at("volumes")))
    if as_json:
        screen.show_json(found)
    elif found:
        rows = [_row(one, session.now()) for one in found]
        screen.out(screen.table(HEADERS, rows, spare=("CREATED", "MESSAGE", "SIZE")))
    else:
        screen.note(NONE)


def _show(session: Session, name: str, as_json: bool) -> None:
    client = session.client
    one = client.get(client.at("volumes", name))
    if as_json:
        screen.show_json(one)
        return
    rows = [*zip((header.lower() for header in HEADERS), _row(one, session.now()), strict=True)]
    rows += [("exclusive", "yes" if one["exclusive"] else "no"), ("version", one["version"]), ("id", one["id"])]
    shown = ("type", "name", "kind", "size", "exclusive", "server", "path")
    rows += [(key, _plain(value)) for key, value in one["spec"].items() if key not in shown]
    screen.out(screen.pairs(rows))


def _row(one: Json, now: float) -> tuple[object, ...]:
    spec = one["spec"]
    where = f"{spec['server']}:{spec['path']}" if one["kind"] == "nfs" else one["instance_name"]
    return (
        one["name"],
        one["kind"],
        one["status"],
        phrase.bare("memory", one["size_mb"]) if one["size_mb"] else "",
        where,
        ", ".join(one["attached"]),
        moment.ago(one["created_at"], now),
        one["message"],
    )


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {one}" for key, one in value.items())
    return str(value)
