"""A run's schedule: `trigger`, `pause`, `resume`."""

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, json_option, pass_session, run_argument, suggesting
from stoker.client.client import Json


@command(
    "trigger",
    short_help="Start a round of a scheduled run now.",
    example="""
    stoker trigger nightly
    stoker trigger nightly --json | jq -r .outcome   # started, queued or skipped
    """,
)
@run_argument
@json_option
@pass_session
def trigger(session: Session, run: str, as_json: bool) -> None:
    """Start a round of a scheduled run now, whatever the clock says.

    While a round runs, its `overlap` decides: `queue` starts the next one when it has ended, `skip` starts nothing.
    """
    from stoker.client import run as runs

    with suggesting(session, run):
        told = runs.trigger(session.client, run)
    if as_json:
        screen.show_json(told)
    else:
        screen.out(told["sentence"])


@command(
    "pause",
    short_help="Let a schedule trigger nothing.",
    example="""
    stoker pause nightly
    stoker resume nightly     # and on, without what was missed
    """,
)
@run_argument
@json_option
@pass_session
def pause(session: Session, run: str, as_json: bool) -> None:
    """Let a schedule trigger nothing until it is resumed. A round that runs goes on."""
    from stoker.client import run as runs

    with suggesting(session, run):
        _show(runs.steer(session.client, run, "pause"), session, as_json)


@command(
    "resume",
    short_help="Let a paused schedule go on.",
    example="""
    stoker resume nightly
    """,
)
@run_argument
@json_option
@pass_session
def resume(session: Session, run: str, as_json: bool) -> None:
    """Let a paused schedule go on with its next trigger. What was missed is not made up for."""
    from stoker.client import run as runs

    with suggesting(session, run):
        _show(runs.steer(session.client, run, "resume"), session, as_json)


def _show(run: Json, session: Session, as_json: bool) -> None:
    if as_json:
        screen.show_json(run)
        return
    schedule = run["schedule"]
    said = "is paused" if schedule["paused"] else f"starts {comes(run, session.now())}"
    screen.out(f"{run['name']} {said}")


def comes(run: Json, now: float) -> str:
    """When its next round begins, from now: `in 3h 5m`. Empty for what has no schedule, or none that goes on."""
    times = (run.get("schedule") or {}).get("next")
    return f"in {moment.span(max(0.0, moment.parse(times[0]) - now))}" if times else ""


def pairs(run: Json, now: float) -> list[tuple[str, object]]:
    """What `stoker get` tells of it."""
    schedule = run.get("schedule")
    if not schedule:
        return []
    told: list[tuple[str, object]] = [
        ("schedule", f"{', '.join(schedule['cron'])} ({schedule['timezone']}, overlap: {schedule['overlap']})"),
        ("rounds", f"{schedule['rounds']}{', and one waits' if schedule['queued'] else ''}"),
    ]
    if last := schedule["last"]:
        ended = f", {moment.clock(last['ended_at'])}" if last["ended_at"] else ""
        told.append(("last round", f"{last['status']} ({last['reason']}{ended})"))
    if schedule["paused"]:
        return [*told, ("next", "paused")]
    for place, time in enumerate(schedule["next"]):
        first = f" ({comes(run, now)})" if place == 0 else ""
        told.append(("next" if place == 0 else "", f"{moment.clock(time)}{first}"))
    return told
