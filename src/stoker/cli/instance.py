"""`stoker instances`: the machines that run jobs."""

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.client.client import Json

HEADERS = ("ID", "STATUS", "FLEET", "JOBS", "FREE", "CPU", "MEMORY", "GPU", "SINCE", "MESSAGE")


@command(
    "instances",
    short_help="List the machines that run jobs.",
    example="""
    stoker instances
    stoker instances 0199d4c2-7f3e-7c1a-9b52-3d1f6a8e2b47
    stoker instances --json | jq '.[].blocks_free'
    """,
)
@click.argument("instance", metavar="[ID]", required=False)
@json_option
@pass_session
def instances(session: Session, instance: str | None, as_json: bool) -> None:
    """List the machines that run jobs, or show one. Each is divided into blocks; FREE are those without a job."""
    client = session.client
    if instance:
        one = client.get(client.at("instances", instance))
        if as_json:
            screen.show_json(one)
        else:
            headers = [header.lower() for header in HEADERS]
            screen.out(screen.pairs(zip(headers, _row(one, session.now()), strict=True)))
        return
    found = client.items(client.at("instances"))
    if as_json:
        screen.show_json_list(found)
    elif rows := [_row(one, session.now()) for one in found]:
        screen.out(screen.table(HEADERS, rows))
    else:
        screen.note("There are no instances; `stoker up` makes one of this machine.")


def _row(one: Json, now: float) -> tuple[object, ...]:
    has = one["resources"]
    silent = f"unreachable since {moment.ago(one['unreachable_since'], now)}" if one["unreachable_since"] else ""
    cordoned = "takes no new jobs" if one["cordoned"] else ""
    return (
        one["id"],
        one["status"],
        one["fleet"],
        one["jobs"],
        f"{one['blocks_free']}/{one['blocks']}",
        f"{has['cpu']:g}",
        f"{has['memory_mb'] / 1024:.3g}GB",
        _gpus(has["gpus"]),
        moment.ago(one["since"], now),
        "; ".join(filter(None, (silent, cordoned, one["health"], one["message"]))),
    )


def _gpus(gpus: list[Json]) -> str:
    names = [gpu["name"] for gpu in gpus]
    return ", ".join(f"{names.count(name)}×{name}" for name in dict.fromkeys(names))
