"""`stoker ps`: the runs at a glance."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.cli.count import counted, place
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
    stoker ps --replicas      # each job of a run of many
    stoker ps -a --json | jq -r '.[] | select(.status == "FAILED") | .name'
    """,
)
@click.option("-a", "--all", "everything", is_flag=True, help="Finished runs too.")
@click.option("-w", "--watch", is_flag=True, help="Go on showing them until Ctrl-C.")
@click.option("-n", "--last", type=click.IntRange(min=1), help="So many, newest first.")
@click.option("--status", metavar="STATUS", help="Only those in this state, e.g. FAILED.")
@click.option("--replicas", is_flag=True, help="Each job of a run that has many, below it.")
@json_option
@pass_session
def ps(
    session: Session,
    everything: bool,
    watch: bool,
    last: int | None,
    status: str | None,
    replicas: bool,
    as_json: bool,
) -> None:
    """List the runs that have not finished, newest first; one of many jobs is a line that counts them.

    Where two have the same name, the beginnings of their ids are shown too, which every command takes instead.
    """
    filters: dict[str, object] = {
        "status": status.upper() if status else None,
        "active": None if everything or status else True,
    }
    most = last or (0 if as_json or not everything else LATEST)
    look = partial(_runs, session, filters, most, replicas)
    if watch:
        _watch(session, look, as_json)
    elif as_json:
        screen.show_json_list(look())
    else:
        runs = look()
        if runs:
            screen.out(_table(runs, session.now()))
        if everything and not last and len(runs) == LATEST:
            screen.note(f"These are the last {LATEST}; -n says how many.")
        elif not runs:
            screen.note("There are no runs." if everything else "No run is unfinished; `stoker ps -a` lists all.")


def _runs(session: Session, filters: dict[str, object], most: int, replicas: bool) -> list[Json]:
    """With `replicas` each has its jobs, of each the latest submission."""
    from stoker.client import run

    runs = list(run.listed(session.client, most=most, **filters))
    return [one | {"jobs": list(run.jobs(session.client, one["id"]))} for one in runs] if replicas else runs


def _table(runs: list[Json], now: float) -> str:
    from stoker.cli.run import lasted
    from stoker.cli.schedule import comes

    ids = _ids(runs)
    coming = any(comes(run, now) for run in runs)
    rows: list[tuple[object, ...]] = []
    for run in runs:
        said = "; ".join(part for part in (counted(run), run["status_message"]) if part)
        took, ago = lasted(run, now), moment.ago(run["submitted_at"], now)
        id, next_ = [run["id"][:ids]] if ids else [], [comes(run, now)] if coming else []
        rows.append((run["name"], *id, run["status"], *next_, ago, took, run["exit_code"], run["user"], said))
        rows += _unfolded(run, len(id), len(next_), now)
    headers = (HEADERS[0], *(["ID"] if ids else []), HEADERS[1], *(["NEXT"] if coming else []), *HEADERS[2:])
    return screen.table(headers, rows, spare=SPARE)


def _unfolded(run: Json, ids: int, coming: int, now: float) -> Iterator[tuple[object, ...]]:
    """The jobs of a run that has many."""
    from stoker.cli.run import exit_of, lasted

    jobs = run.get("jobs") or []
    several = len({job["node"] for job in jobs}) > 1
    for job in jobs if len(jobs) > 1 else ():
        name, said = f"{run['name']}/{place(job, several)}", job["message"] or job["termination_reason"]
        ago = moment.ago(job["submitted_at"], now)
        yield (name, *[""] * ids, job["status"], *[""] * coming, ago, lasted(job, now), exit_of(job), "", said)


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


def _watch(session: Session, look: Callable[[], list[Json]], as_json: bool) -> None:
    """On a terminal the screen is drawn anew; elsewhere what changed is written below."""
    from stoker.cli.attach import Away

    before: object = None
    away = Away()
    runs = look()
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
                runs = look()
            except Unavailable as error:
                away(error)
            else:
                away.back()
                break
