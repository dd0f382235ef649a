"""`stoker events`: the story of a run."""

import json
import sys
from typing import Final

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session, run_argument, suggesting
from stoker.client.client import Json

HEADERS: Final = ("WHAT", "EVENT", "STATUS", "BY", "MESSAGE")
"""Behind the time."""
SPARE: Final = ("BY", "WHAT", "EVENT")
WIDTHS: Final = (23, 4, 14, 26, 5, 40)
"""To begin with, where it is not known yet what will come."""


@command(
    "events",
    short_help="Tell what happened to a run.",
    example="""
    stoker events train-1
    stoker events -f train-1
    stoker events train-1 --json | jq -r '.[].event'
    """,
)
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on telling until the run has finished, or Ctrl-C.")
@json_option
@pass_session
def events(session: Session, run: str, follow: bool, as_json: bool) -> None:
    """Tell what happened to a run and its jobs, oldest first, with who and why."""
    from stoker.cli.attach import Away
    from stoker.client import event
    from stoker.client import run as runs

    with suggesting(session, run):
        if not follow:
            if as_json:
                screen.show_json_list(event.story(session.client, run))
            else:
                pages = list(event.pages(session.client, run))
                _show([one for page in pages for one in page["items"]])
                for trouble in pages[-1].get("troubles", ()):
                    screen.out(_failing(trouble))
            return
        runs.get(session.client, run)
        away = Away()
        columns = screen.Columns(_headers(), WIDTHS, spare=SPARE, least=8)
        if not as_json:
            screen.out(columns.header())
        for one in event.follow(session.client, run, away):
            away.back()
            screen.out(json.dumps(one, ensure_ascii=False) if as_json else columns.row(_row(one)))
            sys.stdout.flush()


def _headers() -> tuple[str, ...]:
    return (f"TIME ({moment.zone()})", *HEADERS)


def _show(told: list[Json]) -> None:
    if told:
        screen.out(screen.table(_headers(), [_row(one) for one in told], spare=SPARE))
    else:
        screen.note("Nothing is known of it any more.")


def _failing(trouble: Json) -> str:
    """No event, since it has not happened: what keeps the story from going on."""
    tries = f"{trouble['tries']} times" if trouble["tries"] != 1 else "once"
    again = f"tried {tries} since {moment.clock(trouble['since'])}, again at {moment.clock(trouble['next_at'])}"
    return f"{trouble['effect']} fails ({again}): {trouble['message']}"


def _row(one: Json) -> tuple[str, ...]:
    source, target = one["source"] or "", one["target"]
    moved = f"{source} → {target}" if source and source != target else target
    return (moment.fine_clock(one["at"]), one["kind"], one["event"], moved, one["by"], one["message"])
