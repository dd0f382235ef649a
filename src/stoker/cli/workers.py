"""`stoker workers`: who runs the tasks."""

from collections.abc import Iterator
from typing import Final

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.client import task as tasks
from stoker.client.client import Json

HEADERS: Final = ("NAME", "ID", "STATE", "TASKS", "CPUS", "MEMORY", "GPUS", "GROUP", "SEEN")
SPARE: Final = ("GROUP", "GPUS", "MEMORY", "ID", "SEEN")


@command(
    "workers",
    short_help="List the workers that run tasks.",
    example="""
    stoker workers
    stoker workers node-7
    stoker workers -a --json | jq '.[] | select(.state == "lost") | .name'
    """,
)
@click.argument("worker", metavar="[WORKER]", required=False)
@click.option("-a", "--all", "everything", is_flag=True, help="Also those that have left or are lost.")
@json_option
@pass_session
def workers(session: Session, worker: str | None, everything: bool, as_json: bool) -> None:
    """List the workers that run tasks, or show one: by its name, its id, or how that begins."""
    if worker is not None:
        one = tasks.worker(session.client, worker)
        if as_json:
            screen.show_json(one)
        else:
            screen.out(screen.pairs(_told(one, session.now())))
        return
    found = tasks.workers(session.client, everything=everything)
    if as_json:
        screen.show_json_list(found)
        return
    rows = [row(one, session.now()) for one in found]
    if rows:
        screen.out(screen.table(HEADERS, rows, spare=SPARE))
    else:
        screen.note("There are no workers; `stoker worker` makes one of this machine.")


def row(one: Json, now: float) -> tuple[object, ...]:
    total = one["total"]
    memory = f"{total['memory'] / 1024:.3g} GB" if total.get("memory") else ""
    cpus, gpus = f"{total['cpus']:g}" if "cpus" in total else "", one["gpus"] or ""
    seen = moment.ago(one["seen_at"], now)
    return (one["name"], one["id"], one["state"], one["running"], cpus, memory, gpus, one["group"], seen)


def _told(one: Json, now: float) -> Iterator[tuple[str, object]]:
    yield from zip((header.lower() for header in HEADERS), row(one, now), strict=True)
    others = {name: amount for name, amount in one["total"].items() if name not in ("cpus", "memory")}
    yield "resources", " ".join(f"{name}={amount}" for name, amount in others.items())
    yield "labels", " ".join(f"{key}={value}" for key, value in one["labels"].items())
    yield "version", one["version"]
    yield "since", moment.clock(one["created_at"])
    yield "ends", moment.clock(one["ends_at"])
