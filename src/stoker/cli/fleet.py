"""`stoker fleets` and `stoker fleet`: the groups of machines."""

import sys
from typing import Any

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, group, json_option, pass_session
from stoker.cli.fleet_watch import watch
from stoker.cli.run import confirm
from stoker.client.client import Json

HEADERS = ("NAME", "NODES", "INSTANCES", "IDLE", "BUSY", "PRICE", "PROJECT", "CREATED", "MESSAGE")
NONE = "There are no fleets; `stoker up` makes one of this machine, `stoker apply` others."


@command(
    "fleets",
    short_help="List the groups of machines.",
    example="""
    stoker fleets
    stoker fleets local --json
    """,
)
@click.argument("fleet", metavar="[NAME]", required=False)
@json_option
@pass_session
def fleets(session: Session, fleet: str | None, as_json: bool) -> None:
    """List the groups of machines that the project may use, or show one."""
    if fleet:
        _show(session, fleet, as_json)
    else:
        _list(session, None, as_json)


@group(
    "fleet",
    short_help="Groups of machines: list, get, delete.",
    example="""
    stoker apply -f fleet.yaml         # makes one, or changes it in place
    stoker fleet get cloud
    stoker fleet delete cloud
    """,
)
def fleet() -> None:
    """Groups of machines with one policy. `stoker apply -f FILE` makes and changes them."""


@fleet.command("list", example="stoker fleet list --tag team=vision --json")
@click.option("--tag", metavar="NAME=VALUE", help="Only with this tag.")
@json_option
@pass_session
def list_(session: Session, tag: str | None, as_json: bool) -> None:
    """List those that the project may use."""
    _list(session, tag, as_json)


@fleet.command("get", example="stoker fleet get office -w")
@click.argument("name")
@click.option("-w", "--watch", "watched", is_flag=True, help="Show what is done on its machines until all are up.")
@json_option
@pass_session
def get(session: Session, name: str, watched: bool, as_json: bool) -> None:
    """Show one, with its machines."""
    if watched:
        watch(session, name)
    _show(session, name, as_json)


@fleet.command("delete", example="stoker fleet delete cloud --force -y")
@click.argument("name")
@click.option("--force", is_flag=True, help="Interrupt what runs on its machines.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def delete(session: Session, name: str, force: bool, yes: bool, as_json: bool) -> None:
    """Delete a fleet with its machines. It is gone with the last of them."""
    confirm(f"Delete fleet {name} with its machines?", yes)
    gone = session.client.ask("DELETE", session.client.at("fleets", name), query={"force": force}).json()
    if as_json:
        screen.show_json(gone)
        return
    screen.out(f"{name}  deleted" if not gone["instances"] else f"{name}  {gone['message']}")


def apply_fleet(
    session: Session, configuration: Json, keys: dict[str, str], *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    """Shows what would change, asks, and does it; machines come and go by themselves."""
    client = session.client
    plan = client.post(client.at("fleets", "plan"), {"configuration": configuration})
    if not as_json:
        _show_plan(plan)
    elif dry_run:
        screen.show_json(plan)
    if dry_run:
        return
    if plan["action"] != "nothing":
        confirm("Make it?" if plan["action"] == "create" else "Change it?", yes, default=True)
    asked = {"configuration": configuration, "expected": plan["expected"], "keys": keys}
    applied = client.post(client.at("fleets"), asked)
    if as_json:
        screen.show_json(applied)
        return
    done = {"create": "made", "update": "changed", "nothing": "unchanged"}[plan["action"]]
    screen.out(f"{applied['name']}  {done}")
    if plan["joining"]:
        screen.note(f"`stoker fleet get -w {applied['name']}` shows how they come.")
    elif applied["message"]:
        screen.note(f"It has {applied['message']}; `stoker fleet get {applied['name']}` shows it.")


def _show_plan(plan: Json) -> None:
    lines = [screen.paint(plan["sentence"], "", sys.stderr, bold=True)]
    lines += [f"  {one['key']}: {one['before'] or 'nothing'} → {one['after'] or 'nothing'}" for one in plan["changes"]]
    lines += [f"  + {one}" for one in plan["joining"]]
    lines += [
        f"  - {one['name']}: {one['reason']}{' (when its jobs have ended)' if one['busy'] else ''}"
        for one in plan["leaving"]
    ]
    screen.note("\n".join(lines))


def _list(session: Session, tag: str | None, as_json: bool) -> None:
    client = session.client
    found = list(client.items(client.at("fleets"), {"tag": tag}))
    if as_json:
        screen.show_json(found)
    elif found:
        rows = [_row(one, session.now()) for one in found]
        screen.out(screen.table(HEADERS, rows, spare=("CREATED", "PROJECT", "PRICE", "MESSAGE")))
    else:
        screen.note(NONE)


def _show(session: Session, name: str, as_json: bool) -> None:
    client = session.client
    one = client.get(client.at("fleets", name))
    instances = list(client.items(client.at("instances"), {"fleet": name}))
    if as_json:
        screen.show_json({**one, "members": instances})
        return
    rows = [*zip((header.lower() for header in HEADERS), _row(one, session.now()), strict=True)]
    rows += [("status", one["status"]), ("cost", money(one["cost"])), ("version", one["version"]), ("id", one["id"])]
    rows += [(key, _plain(value)) for key, value in one["spec"].items() if key not in ("type", "name", "nodes")]
    screen.out(screen.pairs(rows))
    if instances:
        from stoker.cli.instance import show_table

        screen.out()
        show_table(instances, session.now())


def _row(one: Json, now: float) -> tuple[object, ...]:
    return (
        one["name"],
        one["spec"].get("nodes") or len(one["spec"].get("ssh_config", {}).get("hosts", [1])),
        one["instances"],
        one["idle"],
        one["busy"],
        money(one["price"]) if one["price"] else "",
        one["project"] or "all",
        moment.ago(one["created_at"], now),
        one["message"],
    )


def money(amount: float) -> str:
    """Cents where there are few of them, and more of what is less than one."""
    if 0 < amount < 0.0001:
        return "< 0.0001"
    return f"{amount:.2f}" if amount >= 1 or not amount else f"{amount:.4f}".rstrip("0")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_within(one)}" for key, one in value.items())
    return ", ".join(map(_plain, value)) if isinstance(value, list) else str(value)


def _within(value: Any) -> str:
    """Below a key: what has parts has brackets around them, and a host of which nothing else is said is its name."""
    match value:
        case {"host": host, **more} if not more:
            return str(host)
        case dict():
            return f"{{{_plain(value)}}}"
        case list():
            return f"[{', '.join(map(_within, value))}]"
    return str(value)
