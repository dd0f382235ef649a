"""`stoker events`: the story of a run, or of all that a project may see."""

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, complete_run, json_option, known_form, pass_session, suggesting
from stoker.client.client import Json

HEADERS: Final = ("WHAT", "EVENT", "STATUS", "BY", "MESSAGE")
"""Behind the time."""
SPARE: Final = ("BY", "WHAT", "EVENT")
WIDTHS: Final = (23, 4, 14, 26, 5, 40)
"""To begin with, where it is not known yet what will come."""
RECENTLY: Final = "1d"
"""Of a whole project, unless somebody says since when."""


@command(
    "events",
    short_help="Tell what happened, to a run or in the project.",
    example="""
    stoker events train-1
    stoker events -f train-1
    stoker events --since 1h --by ada          # of the whole project
    stoker events --instance local-9c41ab
    stoker events --fleet pool --by server -f  # what happens to its machines by itself
    stoker events train-1 --json | jq -r .event
    """,
)
@click.argument("run", metavar="[RUN]", required=False, shell_complete=complete_run, callback=known_form)
@click.option("-f", "--follow", is_flag=True, help="Go on telling until the run has finished, or Ctrl-C.")
@click.option(
    "--run", "named", metavar="RUN", shell_complete=complete_run, callback=known_form, help="The same as RUN."
)
@click.option("--instance", metavar="NAME", help="Only of this instance.")
@click.option("--fleet", metavar="NAME", help="Only of this fleet and its instances.")
@click.option("--by", metavar="USER", help="Only what this user asked for; `server`: what nobody did.")
@click.option("--since", metavar="TIME", help=f"Only since: 10m, 2h, or a moment. Of a project {RECENTLY} else.")
@click.option("--until", metavar="TIME", help="Only until: 10m (ago), or a moment.")
@json_option
@pass_session
def events(
    session: Session,
    run: str | None,
    follow: bool,
    named: str | None,
    instance: str | None,
    fleet: str | None,
    by: str | None,
    since: str | None,
    until: str | None,
    as_json: bool,
) -> None:
    """Tell what happened to a run and its jobs, oldest first, with who and why; without a run, all that the project may
    see: its runs, the fleets that it may use and their instances. With --json each event is a line.

    What is followed is told completely and once, also when the server is away meanwhile.
    """
    if sum(one is not None for one in (run, named, instance, fleet)) > 1:
        raise click.UsageError("Name one run, or --instance, or --fleet.")
    if follow and until is not None:
        raise click.UsageError("--until does not go with --follow.")
    run = run or named
    if since is None and not follow and run is instance is None:
        since = RECENTLY
    filters = {"instance": instance, "fleet": fleet, "by": by}
    asked: dict[str, object] = {name: value for name, value in filters.items() if value is not None}
    asked |= {name: _moment(text, session.now()) for name, text in (("since", since), ("until", until)) if text}
    if run is None:
        _tell(session, None, asked, follow, as_json)
    else:
        with suggesting(session, run):
            _tell(session, run, asked, follow, as_json)


def _tell(session: Session, run: str | None, asked: dict[str, object], follow: bool, as_json: bool) -> None:
    from stoker.cli.attach import Away
    from stoker.client import event
    from stoker.client import run as runs

    if not follow:
        pages = event.pages(session.client, run, asked)
        if as_json:
            _lines(one for page in pages for one in page["items"])
        else:
            _show(list(pages), run)
        return
    if run is not None:
        runs.get(session.client, run)
    away = Away()
    columns = screen.Columns(_headers(), WIDTHS, spare=SPARE, least=8)
    if not as_json:
        screen.out(columns.header())
    for one in event.follow(session.client, run, asked, away):
        away.back()
        screen.out(json.dumps(one, ensure_ascii=False) if as_json else columns.row(_row(one, run)))
        sys.stdout.flush()


def _moment(text: str, now: float) -> str:
    return datetime.fromtimestamp(moment.since(text, now), UTC).isoformat().replace("+00:00", "Z")


def _lines(told: Iterable[Json]) -> None:
    for one in told:
        screen.out(json.dumps(one, ensure_ascii=False))


def _headers() -> tuple[str, ...]:
    return (f"TIME ({moment.zone()})", *HEADERS)


def _show(pages: list[Json], run: str | None) -> None:
    if told := [one for page in pages for one in page["items"]]:
        screen.out(screen.table(_headers(), [_row(one, run) for one in told], spare=SPARE))
    else:
        screen.note("Nothing is known of it any more." if run else "Nothing of that kind happened.")
    for trouble in pages[-1].get("troubles", ()):
        screen.out(_failing(trouble))


def _failing(trouble: Json) -> str:
    """No event, since it has not happened: what keeps the story from going on."""
    tries = f"{trouble['tries']} times" if trouble["tries"] != 1 else "once"
    again = f"tried {tries} since {moment.clock(trouble['since'])}, again at {moment.clock(trouble['next_at'])}"
    return f"{trouble['effect']} fails ({again}): {trouble['message']}"


def _row(one: Json, run: str | None) -> tuple[str, ...]:
    source, target = one["source"] or "", one["target"]
    moved = f"{source} → {target}" if source and source != target else target
    return (moment.fine_clock(one["at"]), _what(one, run), one["event"], moved, one["by"], one["message"])


def _what(one: Json, run: str | None) -> str:
    """In a run's own story its name need not be said; of its jobs, which one."""
    name = one.get("name") or ""
    if run is not None:
        name = name.rpartition("/")[2] if one["kind"] == "job" else ""
        name = "" if name == "0-0" else name
    return f"{one['kind']} {name}".strip()
