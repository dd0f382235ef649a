"""`stoker task stats`: counts, rates and how long things took."""

from collections.abc import Callable, Iterator
from typing import Final

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.cli.task_list import STATES, exit_of
from stoker.cli.task_options import which_of, which_options
from stoker.cli.task_wait import counted, named, rate
from stoker.client import task as tasks
from stoker.client.client import Json
from stoker.client.task_watch import statistics

HEADERS: Final = ("", "ATTEMPTS", "LEAST", "MEAN", "P50", "P90", "P99", "MOST")
COLUMNS: Final = ("least", "mean", "p50", "p90", "p99", "most")
KB: Final = 1024


def size(amount: float) -> str:
    """`12.3 MB`, of bytes."""
    for unit in ("B", "KB", "MB", "GB"):
        if amount < KB:
            return f"{amount:.3g} {unit}"
        amount /= KB
    return f"{amount:.3g} TB"


def share(amount: float) -> str:
    return f"{amount:.0%}"


MEASURES: Final[dict[str, tuple[str, Callable[[float], str]]]] = {
    "wait": ("waited", moment.span),
    "run_time": ("ran", moment.span),
    "cpu": ("CPU time", moment.span),
    "memory": ("memory", size),
    "gpu": ("GPU", share),
}


@command(
    "stats",
    short_help="Count tasks, and tell how long they take.",
    example="""
    stoker task stats
    stoker task stats --group sweep
    stoker task stats --group sweep --json | jq .run_time.p90
    """,
)
@which_options
@json_option
@pass_session
def stats(session: Session, refs: tuple[str, ...], group: str | None, label: str | None, as_json: bool) -> None:
    """Count the tasks of the project, of a group, or with a label, and tell how long they wait and run, and what they
    use. Percentiles are right within five percent.
    """
    which = which_of(session, refs, group, label, needed=False)
    told = statistics(session.client, which)
    if as_json:
        screen.show_json(told)
        return
    screen.out(f"{named(which)}: {counted(told)}")
    screen.out(screen.pairs(_told(told)))
    if rows := list(measured(told)):
        screen.out()
        screen.out(screen.table(HEADERS, rows, spare=("LEAST", "P99", "ATTEMPTS")))


def _told(told: Json) -> Iterator[tuple[str, object]]:
    for state in STATES:
        yield state.replace("_", " "), told["states"].get(state) or None
    yield "held", told["held"] or None
    yield "retries", told["retries"] or None
    yield "lost", told["lost"] or None
    yield "exit codes", ", ".join(f"{exit_of(int(code))}: {count}" for code, count in told["exit_codes"].items())
    yield "rate", f"{rate(told['throughput'])} a second" if told["throughput"] else ""
    left_s = told["seconds_left"]
    yield "time left", f"about {moment.span(left_s)}" if left_s is not None and tasks.left(told) else ""


def measured(told: Json) -> Iterator[tuple[object, ...]]:
    for key, (name, shown) in MEASURES.items():
        one = told.get(key) or {}
        if one.get("count"):
            cells = (shown(one[column]) if one.get(column) is not None else "" for column in COLUMNS)
            yield (name, one["count"], *cells)
