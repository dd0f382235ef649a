"""`stoker ps`: the runs at a glance."""

import shutil
import sys
import time
from typing import Final

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.client.client import Json
from stoker.core.errors import Unavailable

HEADERS: Final = ("NAME", "STATUS", "SUBMITTED", "TOOK", "EXIT", "USER", "MESSAGE")
SPARE: Final = ("USER", "TOOK", "SUBMITTED", "EXIT", "MESSAGE")
LATEST: Final = 50
"""How many runs `-a` shows to a person who does not say how many; programs get them all."""
ID_CHARS: Final = (13, 18, 23)
"""The first 13 are the millisecond in which it was submitted, which seldom two share."""
WATCH_S: Final = 1.0
HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"


@command(
    "ps",
    short_help="List runs.",
    example="""
    stoker ps                 # what has not finished
    stoker ps -a -n 10        # the last ten
    stoker ps -w              # live
    stoker ps -a --json | jq -r '.[] | select(.status == "FAILED") | .name'
    """,
)
@click.option("-a", "--all", "everything", is_flag=True, help="Finished runs too.")
@click.option("-w", "--watch", is_flag=True, help="Go on showing them until Ctrl-C.")
@click.option("-n", "--last", type=click.IntRange(min=1), help="So many, newest first.")
@click.option("--status", metavar="STATUS", help="Only those in this state, e.g. FAILED.")
@json_option
@pass_session
def ps(session: Session, everything: bool, watch: bool, last: int | None, status: str | None, as_json: bool) -> None:
    """List the runs that have not finished, newest first.

    Where two have the same name, the beginnings of their ids are shown too, which every command takes instead.
    """
    filters: dict[str, object] = {
        "status": status.upper() if status else None,
        "active": None if everything or status else True,
    }
    most = last or (0 if as_json or not everything else LATEST)
    if watch:
        _watch(session, filters, most, as_json)
    elif as_json:
        screen.show_json_list(_runs(session, filters, most))
    else:
        runs = _runs(session, filters, most)
        if runs:
            screen.out(_table(runs, session.now()))
        if everything and not last and len(runs) == LATEST:
            screen.note(f"These are the last {LATEST}; -n says how many.")
        elif not runs:
            screen.note("There are no runs." if everything else "No run is unfinished; `stoker ps -a` lists all.")


def _runs(session: Session, filters: dict[str, object], most: int) -> list[Json]:
    from stoker.client import run

    return list(run.listed(session.client, most=most, **filters))


def _table(runs: list[Json], now: float) -> str:
    from stoker.cli.run import lasted

    ids = _ids(runs)
    rows = [
        (
            run["name"],
            *([run["id"][:ids]] if ids else []),
            run["status"],
            moment.ago(run["submitted_at"], now),
            lasted(run, now),
            run["exit_code"],
            run["user"],
            run["status_message"],
        )
        for run in runs
    ]
    return screen.table((HEADERS[0], *(["ID"] if ids else []), *HEADERS[1:]), rows, spare=SPARE)


def _ids(runs: list[Json]) -> int:
    """How many characters of the ids tell all of them apart; none where the names do."""
    if len({run["name"] for run in runs}) == len(runs):
        return 0
    return next((most for most in ID_CHARS if len({run["id"][:most] for run in runs}) == len(runs)), 36)


def _window(runs: list[Json], now: float) -> str:
    """As many as the terminal has lines for: what is scrolled out at the top could not be drawn anew."""
    if not runs:
        return "No run is unfinished."
    room = max(3, shutil.get_terminal_size().lines - 2)
    lines = _table(runs, now).splitlines()
    return "\n".join(lines if len(lines) <= room else [*lines[: room - 1], f"… and {len(lines) - room + 1} more"])


def _watch(session: Session, filters: dict[str, object], most: int, as_json: bool) -> None:
    """On a terminal the screen is drawn anew; elsewhere what changed is written below."""
    from stoker.cli.attach import Away

    before: object = None
    away = Away()
    runs = _runs(session, filters, most)
    live = sys.stdout.isatty() and not as_json
    while True:
        if live:
            screen.out(HOME_AND_CLEAR + _window(runs, session.now()))
        elif runs != before:
            if as_json:
                import json

                screen.out(json.dumps(runs, ensure_ascii=False))
            else:
                screen.out(_table(runs, session.now()) + "\n")
            sys.stdout.flush()
            before = runs
        while True:
            time.sleep(WATCH_S)
            try:
                runs = _runs(session, filters, most)
            except Unavailable as error:
                away(error)
            else:
                away.back()
                break
