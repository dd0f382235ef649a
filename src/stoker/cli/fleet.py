"""`stoker fleets`: the groups of machines."""

import json

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session


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
    client = session.client
    found = [client.get(client.at("fleets", fleet))] if fleet else list(client.items(client.at("fleets")))
    if as_json:
        screen.show_json(found[0] if fleet else found)
        return
    headers = ("NAME", "INSTANCES", "PROJECT", "CREATED", "SPEC")
    rows = [
        (
            one["name"],
            one["instances"],
            one["project"] or "all",
            moment.ago(one["created_at"], session.now()),
            json.dumps(one["spec"], ensure_ascii=False),
        )
        for one in found
    ]
    if rows:
        screen.out(screen.table(headers, rows))
    else:
        screen.note("There are no fleets; `stoker up` makes one of this machine.")
