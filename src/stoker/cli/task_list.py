"""`stoker task list` and `get`: what there is, and one of them in full."""

import json
import shlex
from collections.abc import Iterator
from typing import Any, Final

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.cli.task_options import label_of
from stoker.client import task as tasks
from stoker.client.client import Json
from stoker.core import phrase

STATES: Final = ("inactive", "available", "running", "pending_cancellation", "terminated", "cancelled")
HEADERS: Final = ("ID", "NAME", "STATE", "EXIT", "TRIES", "GROUP", "SINCE", "COMMAND")
SPARE: Final = ("GROUP", "TRIES", "SINCE", "NAME", "COMMAND")
ASKED: Final = ("id", "name", "state", "held", "exit_status", "retry_count", "group", "entered_at", "command")
LATEST: Final = 50
"""How many are shown to a person who does not say how many; programs get them all."""
ID: Final = click.argument("ref", metavar="TASK")
MB: Final = 1024 * 1024


@command(
    "list",
    short_help="List tasks.",
    example="""
    stoker task list                                  # what has not ended
    stoker task list --group sweep --state running
    stoker task list --group sweep --failed -n 5
    stoker task list -a --fields id,exit_status --json | jq -c .[]
    """,
)
@click.option("-a", "--all", "everything", is_flag=True, help="Ended ones too.")
@click.option("--state", metavar="STATE", type=click.Choice(STATES), multiple=True, help=f"{', '.join(STATES)}.")
@click.option("--failed", is_flag=True, help="Only those that ended without success.")
@click.option("--held", is_flag=True, help="Only those that nobody may claim.")
@click.option("--group", metavar="NAME", help="Only of this group.")
@click.option("--label", metavar="KEY=VALUE", multiple=True, help="Only with this label.")
@click.option("--name", metavar="NAME", help="Only of this name.")
@click.option("--worker", metavar="WORKER", help="Only those that this worker holds.")
@click.option("-n", "--last", metavar="N", type=click.IntRange(min=1), help="So many, newest first.")
@click.option("--fields", metavar="A,B", help="Only these fields, as the API names them.")
@json_option
@pass_session
def list_(
    session: Session,
    /,
    everything: bool,
    state: tuple[str, ...],
    failed: bool,
    held: bool,
    label: tuple[str, ...],
    worker: str | None,
    last: int | None,
    fields: str | None,
    as_json: bool,
    **filters: Any,
) -> None:
    """List the tasks that have not ended, newest first."""
    for one in label:
        label_of(one)
    chosen = [name.strip() for name in fields.split(",") if name.strip()] if fields else []
    states = list(state) or ([] if everything or failed or held else [*STATES[:4]])
    most = last or (0 if as_json else LATEST)
    asked: dict[str, Any] = filters | {"held": held, "failed": failed}
    if worker:
        asked["worker"] = tasks.worker(session.client, worker)["id"]
    fields_ = chosen or ([] if as_json else ASKED)
    found = tasks.listed(session.client, fields=fields_, most=most, states=states, labels=label, **asked)
    if as_json:
        screen.show_json_list(found)
        return
    rows = list(found)
    if rows and chosen:
        headers = [name.upper() for name in chosen]
        screen.out(screen.table(headers, [[_cell(one.get(name)) for name in chosen] for one in rows]))
    elif rows:
        screen.out(screen.table(HEADERS, [_row(one, session.now()) for one in rows], spare=SPARE))
    else:
        screen.note("There are no such tasks." if everything or state else "No task is left; `-a` lists all.")
    if not last and len(rows) == LATEST:
        screen.note(f"These are the last {LATEST}; -n says how many.")


def _row(one: Json, now: float) -> tuple[object, ...]:
    held = "held" if tasks.poisoned(one) else "later"
    state = f"{one['state']} ({held})" if one.get("held") else one["state"]
    tries, exit = one["retry_count"] or "", exit_of(one["exit_status"])
    since = moment.ago(one["entered_at"], now)
    return (one["id"], one["name"], state, exit, tries, one["group"], since, shown_command(one["command"]))


def exit_of(status: int | None) -> str:
    return "" if status is None else f"signal {-status}" if status < 0 else str(status)


def shown_command(command: str | list[str] | None) -> str:
    if command is None:
        return "(barrier)"
    return command if isinstance(command, str) else shlex.join(command)


def _cell(value: Any) -> object:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else value


@command(
    "get",
    short_help="Show one task.",
    example="""
    stoker task get 0199d4c2-7f3a
    stoker task get train-7 --json | jq -r .execution_info.result
    """,
)
@ID
@json_option
@pass_session
def get(session: Session, ref: str, as_json: bool) -> None:
    """Show one task, and each attempt to run it; with --json they are its `history`."""
    id = tasks.found(session.client, ref)
    task, history = tasks.get(session.client, id), tasks.history(session.client, id)
    if as_json:
        screen.show_json(task | {"history": history})
        return
    now = session.now()
    screen.out(screen.pairs(_told(task, now)))
    if history:
        headers = ("ATTEMPT", "OUTCOME", "EXIT", "TOOK", "MEMORY", "WORKER", "STARTED", "MESSAGE")
        rows = [_attempt(one, now) for one in history]
        screen.out()
        screen.out(screen.table(headers, rows, spare=("STARTED", "WORKER", "MEMORY")))


def _told(task: Json, now: float) -> Iterator[tuple[str, object]]:
    yield "id", task["id"]
    yield "name", task["name"]
    yield "state", f"{task['state']} ({moment.ago(task['entered_at'], now)})"
    yield "held", task["held"]
    yield "command", shown_command(task["command"])
    yield "exit", exit_of(task["exit_status"])
    yield "result", (task.get("execution_info") or {}).get("result")
    yield "group", task["group"]
    yield "labels", " ".join(f"{key}={value}" for key, value in task["labels"].items())
    yield "needs", ", ".join(f"{name}={phrase.bare(name, much)}" for name, much in task["requested_resources"].items())
    yield "attempts", f"{task['retry_count']} of {task['max_retry_count']}"
    yield "priority", task["priority"] or None
    yield "directory", task["working_dir"]
    yield "variables", " ".join(task["env"])
    waits = task["pending_dependency_count"]
    yield "waits for", f"{waits} of {len(task['depends_on'])} tasks" if waits else ""
    yield "after", _some(task["depends_on"])
    yield "before", _some(task["continuations"])
    yield "limited by", task["concurrency_key"]
    yield "deadline", moment.clock(task["deadline"])
    yield "not before", moment.clock(task["start_after"])
    yield "retry of", task["retry_of"]
    yield "created", f"{moment.clock(task['created_at'])} ({moment.ago(task['created_at'], now)})"


def _some(ids: list[str]) -> str:
    return f"{', '.join(ids[:3])}{f' and {len(ids) - 3} more' if len(ids) > 3 else ''}"


def _attempt(one: Json, now: float) -> tuple[object, ...]:
    began, ended = one["time_started"], one["time_terminated"]
    took = moment.span((moment.parse(ended) if ended else now) - moment.parse(began)) if began else ""
    memory = max(one["memory_usage"]["values"], default=None) if one.get("memory_usage") else None
    worker = (one["worker"] or "")[:13]
    outcome = one["outcome"] or "running"
    size = "" if memory is None else f"{memory / MB:.0f} MB"
    started = moment.ago(began, now)
    return (one["attempt"], outcome, exit_of(one["exit_status"]), took, size, worker, started, one["message"])
