"""`stoker task top`: what the swarm does, live."""

import shutil
import sys
import time
from typing import Final

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.cli.task_list import shown_command
from stoker.cli.task_options import which_of
from stoker.cli.task_wait import Bar, named, progress
from stoker.cli.workers import HEADERS as WORKERS
from stoker.cli.workers import SPARE, row
from stoker.client import task as tasks
from stoker.client.client import Json
from stoker.client.task_watch import Which, statistics
from stoker.core.errors import Unavailable

WATCH_S: Final = 1.0
HOME_AND_CLEAR: Final = "\x1b[H\x1b[J"
FIELDS: Final = ("id", "name", "command", "worker", "entered_at", "retry_count")
HEADERS: Final = ("RUNNING", "FOR", "WORKER", "TRY", "COMMAND")
MOST_WORKERS: Final = 8
MOST_RUNNING: Final = 50


@command(
    "top",
    short_help="Watch tasks and workers live.",
    example="""
    stoker task top
    stoker task top --group sweep
    stoker task top --json | jq .statistics.throughput
    """,
)
@click.option("--group", metavar="NAME", help="Only this group.")
@click.option("--label", metavar="KEY=VALUE", help="Only those with this label.")
@json_option
@pass_session
def top(session: Session, group: str | None, label: str | None, as_json: bool) -> None:
    """Watch how far tasks are, what the workers do, and what has been running for longest, until Ctrl-C.

    Where the output is no terminal, it is shown once.
    """
    which = which_of(session, (), group, label, needed=False)
    seen = _look(session, which)
    if as_json:
        screen.show_json(seen)
        return
    if not sys.stdout.isatty():
        screen.out(_drawn(seen, which, session.now(), 0))
        return
    bar = Bar(shown=False)
    while True:
        room = shutil.get_terminal_size().lines - 1
        screen.out(HOME_AND_CLEAR + _drawn(seen, which, session.now(), room), nl=False)
        sys.stdout.flush()
        time.sleep(WATCH_S)
        try:
            seen = _look(session, which)
            bar.back()
        except Unavailable as error:
            bar.away(error)


def _look(session: Session, which: Which) -> Json:
    client = session.client
    labels = [which.label] if which.label else []
    running = tasks.listed(
        client, fields=FIELDS, most=MOST_RUNNING, states=["running"], labels=labels, group=which.group, oldest=True
    )
    told, workers = statistics(client, which), list(tasks.workers(client))
    return {"statistics": told, "workers": workers, "running": list(running)}


def _drawn(seen: Json, which: Which, now: float, room: int) -> str:
    """With no more lines than there is room for; none: all."""
    told, workers = seen["statistics"], seen["workers"]
    lines = [f"{screen.paint(named(which), '', bold=True)}  {progress(told) if told['total'] else 'no tasks'}", ""]
    busy = sorted(workers, key=lambda one: -int(one["running"]))
    if busy:
        lines += screen.table(WORKERS, [row(one, now) for one in busy[:MOST_WORKERS]], spare=SPARE).splitlines()
        lines += [f"… and {len(busy) - MOST_WORKERS} more"] if len(busy) > MOST_WORKERS else []
    else:
        lines += ["There are no workers; `stoker worker` is one."]
    if seen["running"]:
        names = {one["id"]: one["name"] for one in workers}
        lines += ["", *screen.table(HEADERS, [_row(one, names, now) for one in seen["running"]]).splitlines()]
    return "\n".join(lines[:room] if room > 0 else lines)


def _row(one: Json, names: dict[str, str], now: float) -> tuple[object, ...]:
    ran = moment.span(max(0.0, now - moment.parse(one["entered_at"])))
    worker = names.get(one["worker"] or "", "")
    return (one["name"] or one["id"], ran, worker, one["retry_count"], shown_command(one["command"]))
