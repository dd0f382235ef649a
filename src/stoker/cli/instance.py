"""`stoker instances`: the machines that run jobs."""

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.client.client import Json
from stoker.core import phrase

HEADERS = ("NAME", "STATUS", "FLEET", "JOBS", "FREE CPU", "FREE MEMORY", "FREE GPU", "SINCE", "MESSAGE")


@command(
    "instances",
    short_help="List the machines that run jobs.",
    example="""
    stoker instances
    stoker instances local-9c41ab
    stoker instances --json | jq '.[].free.cpu'
    """,
)
@click.argument("instance", metavar="[NAME]", required=False)
@json_option
@pass_session
def instances(session: Session, instance: str | None, as_json: bool) -> None:
    """List the machines that run jobs and what is free on them, or show one."""
    client = session.client
    if instance:
        one = client.get(client.at("instances", instance))
        if as_json:
            screen.show_json(one)
        else:
            headers = [header.lower() for header in HEADERS]
            rest = (("id", one["id"]), ("blocks free", f"{one['blocks_free']} of {one['blocks']}"))
            screen.out(screen.pairs([*zip(headers, _row(one, session.now()), strict=True), *rest]))
        return
    found = client.items(client.at("instances"))
    if as_json:
        screen.show_json_list(found)
    elif rows := [_row(one, session.now()) for one in found]:
        screen.out(screen.table(HEADERS, rows, spare=("SINCE", "FLEET", "JOBS", "MESSAGE")))
    else:
        screen.note("There are no instances; `stoker up` makes one of this machine.")


def _row(one: Json, now: float) -> tuple[object, ...]:
    has, free = one["resources"], one["free"]
    silent = f"unreachable since {moment.ago(one['unreachable_since'], now)}" if one["unreachable_since"] else ""
    cordoned = "takes no new jobs" if one["cordoned"] else ""
    return (
        one["name"],
        one["status"],
        one["fleet"],
        one["jobs"],
        phrase.spare("cpu", free["cpu"], has["cpu"]).partition(" CPU")[0],
        phrase.spare("memory", free["memory_mb"], has["memory_mb"]).removesuffix(" of memory"),
        f"{free['gpus']:g} of {_gpus(has['gpus'])}" if has["gpus"] else "",
        moment.ago(one["since"], now),
        "; ".join(filter(None, (silent, cordoned, one["health"], one["message"]))),
    )


def _gpus(gpus: list[Json]) -> str:
    names = [gpu["name"] for gpu in gpus]
    return ", ".join(f"{names.count(name)}×{name}" for name in dict.fromkeys(names))
