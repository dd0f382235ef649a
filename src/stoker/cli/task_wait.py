"""`stoker task wait`: how far they are, how long it will take, and how they ended."""

import sys
from typing import Final

import click

from stoker.cli import exits, moment, screen
from stoker.cli.command import Session, command, json_option, pass_session
from stoker.cli.live import Live
from stoker.cli.task_options import which_of, which_options
from stoker.client import task as tasks
from stoker.client import task_watch as watch
from stoker.client.client import Json
from stoker.client.task_watch import Which
from stoker.core.errors import NotFound, Unavailable

LOOK_S: Final = 0.5
"""How often a bar moves."""
BAR: Final = 24
COUNTED: Final = ("running", "pending_cancellation", "available", "inactive")


@command(
    "wait",
    short_help="Wait until tasks have ended.",
    example="""
    stoker task wait --group sweep && echo all of them worked
    stoker task wait 0199d4c2-7f3a train-7 --timeout 10m
    stoker task wait --label night=12 --json | jq .failed
    """,
)
@which_options
@click.option("--timeout", metavar="TIME", help="Give up after so long (30s, 10m, 2h).")
@json_option
@pass_session
def wait(
    session: Session, refs: tuple[str, ...], group: str | None, label: str | None, timeout: str | None, as_json: bool
) -> None:
    """Wait until tasks have ended: those that are named, or all of a group or with a label.

    The exit code is 0 when all succeeded, 100 when some failed or are held, 101 when they have not ended in time, 102
    when there are none, and 103 when some were cancelled and none failed.
    """
    timeout_s = moment.seconds_of(timeout) if timeout else None
    try:
        which = which_of(session, refs, group, label, needed=True)
        code = attend(session, which, timeout_s=timeout_s, as_json=as_json)
    except NotFound as error:
        screen.complain(error.sentence, error.hint)
        code = exits.RUN_NOT_FOUND
    raise click.exceptions.Exit(code)


def attend(session: Session, which: Which, *, timeout_s: float | None = None, as_json: bool = False) -> int:
    """Waits with a bar, says how they ended, and returns the exit code that this means."""
    bar = Bar(shown=sys.stderr.isatty() and not as_json)
    try:
        look_s = LOOK_S if bar.shown else watch.LONG_POLL_S
        told = watch.wait(session.client, which, timeout_s=timeout_s, look_s=look_s, seen=bar.show, away=bar.away)
    finally:
        bar.clear()
    if not told["total"]:
        raise NotFound(f"There are no tasks in {named(which)}.", hint="`stoker task list -a` shows what there is.")
    if as_json:
        screen.show_json(told)
    else:
        screen.out(sentence(told, which))
    return code_of(told)


def code_of(told: Json) -> int:
    if told["failed"] or told["held"]:
        return exits.RUN_FAILED
    if tasks.left(told):
        return exits.RUN_UNFINISHED
    return exits.RUN_STOPPED if told["states"].get("cancelled") else exits.OK


def named(which: Which) -> str:
    if which.ids:
        return which.ids[0] if len(which.ids) == 1 else f"{len(which.ids)} tasks"
    return which.group or which.label or "the project"


def sentence(told: Json, which: Which) -> str:
    """How they stand, in a line; and what to do about those that nobody may claim."""
    name, total = named(which), told["total"]
    ended = "all " if total > 1 and told["succeeded"] == total else ""
    said = f"{name}: {ended}{counted(told)}"
    if told["failed"] and (codes := _codes(told)):
        said += f"; failed attempts: {codes}"
    if told["held"]:
        of = " ".join(which.ids) or (f"--group {which.group}" if which.group else f"--label {which.label}")
        said += (
            f"\n{told['held']} held: they took too many workers with them. `stoker task retry {of}` lets them go on."
        )
    return said


def counted(told: Json) -> str:
    """`612/1000 done, 8 running, 3 failed`."""
    states = told["states"]
    parts = [f"{told['succeeded']}/{told['total']} {screen.paint('done', 'green')}"]
    parts += [f"{states[state]} {state.replace('_', ' ')}" for state in COUNTED if states.get(state)]
    parts += [f"{told['failed']} {screen.paint('failed', 'red')}"] if told["failed"] else []
    parts += [f"{states['cancelled']} cancelled"] if states.get("cancelled") else []
    parts += [f"{told['held']} held"] if told["held"] else []
    return ", ".join(parts)


def _codes(told: Json) -> str:
    """Of all attempts, also those after which it was tried again; the most frequent ones first."""
    codes = sorted(((int(code), int(count)) for code, count in told["exit_codes"].items()), key=lambda pair: -pair[1])
    said = [f"{count}× {'exit' if code > 0 else 'signal'} {abs(code)}" for code, count in codes if code]
    return ", ".join(said[:5])


class Bar:
    """A line on stderr while they are waited for; only on a terminal, and gone afterwards."""

    def __init__(self, *, shown: bool) -> None:
        self.shown, self._live, self._is_away = shown, Live(), False

    def back(self) -> None:
        if self._is_away:
            screen.note("The server is back.")
        self._is_away = False

    def show(self, told: Json) -> None:
        self.back()
        if self.shown and told["total"]:
            self._live.show(click.unstyle(progress(told)))

    def away(self, error: Unavailable) -> None:
        if not self._is_away:
            self._live.clear()
            screen.note(f"{error.sentence} The tasks do not depend on it; trying again, Ctrl-C to leave.")
        self._is_away = True

    def clear(self) -> None:
        self._live.clear()


def progress(told: Json) -> str:
    """A bar, what there is in each state, the rate, and the time left."""
    done = told["total"] - tasks.left(told)
    parts = [drawn(done / told["total"]), counted(told)]
    parts += [f"{rate(told['throughput'])}/s"] if told["throughput"] else []
    if told["seconds_left"] is not None and tasks.left(told):
        parts += [f"about {moment.span(max(1.0, told['seconds_left']))} left"]
    return "  ".join(parts)


def rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def drawn(part: float) -> str:
    full, empty = ("█", "░") if unicode_on(sys.stderr) else ("#", "-")
    filled = min(BAR, int(part * BAR))
    return f"{full * filled}{empty * (BAR - filled)} {int(part * 100):3}%"


def unicode_on(stream: object) -> bool:
    return "utf" in str(getattr(stream, "encoding", "")).lower()
