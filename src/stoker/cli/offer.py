"""`stoker offers`: the machines that could be launched now, for a configuration or for anything."""

import os

import click

from stoker.cli import screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.client.client import Json
from stoker.core import phrase

HEADERS = ("OFFER", "WHERE", "RESOURCES", "SPOT", "PRICE", "AVAILABLE", "PENALTY", "FLEETS", "WHY NOT")
SPARE = ("FLEETS", "PENALTY", "AVAILABLE", "WHERE")
MOST = 500


@command(
    "offers",
    short_help="List the machines that could be launched.",
    example="""
    stoker offers                      # whatever there is
    stoker offers -f train.yaml        # what would do for this, and why the rest would not
    stoker offers -f train.yaml --json | jq '.items[0].price'
    """,
)
@click.option("-f", "--file", metavar="FILE", help="A configuration, YAML or JSON; - reads stdin.")
@click.option("-n", "--limit", metavar="N", type=click.IntRange(1, MOST), default=50, help="At most so many.")
@json_option
@pass_session
def offers(session: Session, file: str | None, limit: int, as_json: bool) -> None:
    """List the machines that could be launched now, cheapest first, with what stands against the others, and whether
    the instances that are there would do.

    The price is by the hour. A penalty is what is remembered of launches that failed and machines that were taken away:
    each counts one, fades by half in ten minutes, and doubles the price by which offers are ranked.
    """
    told = _asked(session, file, limit)
    if as_json:
        screen.show_json(told)
        return
    if told["items"]:
        screen.out(screen.table(HEADERS, [_row(one) for one in told["items"]], spare=SPARE))
        if told["more"]:
            screen.out(f"… and {told['more']} more")
    else:
        screen.note("No backend offers machines: jobs run on the hosts that you have.")
    _show_instances(told, file is not None)


def _asked(session: Session, file: str | None, limit: int) -> Json:
    client = session.client
    told: Json
    if file is None:
        told = client.get(client.at("offers"), {"limit": limit})
    else:
        from stoker.cli.apply import text_of
        from stoker.client.configuration import read

        configuration = read(text_of(file), "stdin" if file == "-" else file, os.environ).given
        told = client.post(f"{client.at('offers')}?limit={limit}", {"configuration": configuration})
    return told


def _row(one: Json) -> tuple[object, ...]:
    return (
        one["name"],
        f"{one['backend']}/{one['location']}",
        _resources(one["resources"]),
        "spot" if one["spot"] else "",
        f"{one['price']:g}",
        "" if one["available"] is None else one["available"],
        f"{one['penalty']:.1f}" if one["penalty"] >= 0.05 else "",
        ", ".join(one["fleets"]),
        one["sentence"],
    )


def _resources(has: Json) -> str:
    names = [gpu["name"] for gpu in has["gpus"]]
    gpus = [f"{names.count(name)}×{name}" for name in dict.fromkeys(names)]
    return ", ".join([phrase.amount("cpu", has["cpu"]), phrase.amount("memory", has["memory_mb"]), *gpus])


def _show_instances(told: Json, wished: bool) -> None:
    there = told["instances"]
    if not there:
        return
    fitting = sum(one["fits"] for one in there)
    screen.out()
    does = "would do now" if wished else "may be used now"
    screen.out(f"Existing instances ({fitting} of {len(there) + told['more_instances']} {does}):")
    for one in there:
        screen.out(f"  {one['name']}: {one['sentence'] or 'yes'}")
    if told["more_instances"]:
        screen.out(f"  … and {told['more_instances']} more")
