"""One run: `get`, `why`, `stop`, `retry`, `wait`, `delete`."""

import sys
from collections.abc import Iterator
from contextlib import suppress

import click

from stoker.cli import exits, moment, screen
from stoker.cli.command import (
    Session,
    command,
    complete_run,
    json_option,
    known_form,
    pass_session,
    run_argument,
    suggesting,
)
from stoker.cli.count import counted
from stoker.client.client import Json
from stoker.core.errors import NotFound, StokerError, Unavailable, UserError

SHOWN_REPLICAS = 20
LEAST_PENALTY = 0.05
"""Less is not worth a word."""
NO_ENGINE = "Start Docker or Podman there; only agents that are root use it. `stoker instance get` says if one answers."
runs_argument = click.argument("runs", metavar="RUN...", nargs=-1, shell_complete=complete_run, callback=known_form)


@command(
    "get",
    short_help="Show one run.",
    example="""
    stoker get train-1
    stoker get train-1 --json | jq .jobs
    """,
)
@run_argument
@json_option
@pass_session
def get(session: Session, run: str, as_json: bool) -> None:
    """Show one run with its jobs: the latest of that name, or the one whose id begins so."""
    from stoker.client import run as runs

    with suggesting(session, run):
        found = runs.get(session.client, run)
    if as_json:
        screen.show_json(found)
    else:
        show(found, session.now())


def show(run: Json, now: float) -> None:
    from stoker.cli.schedule import pairs

    screen.out(
        screen.pairs(
            [
                ("name", run["name"]),
                ("id", run["id"]),
                ("status", run["status"]),
                ("reason", run["termination_reason"]),
                ("message", run["status_message"]),
                ("exit code", run["exit_code"]),
                ("project", run["project"]),
                ("user", run["user"]),
                ("submitted", _told(run["submitted_at"], now)),
                ("started", _told(run["started_at"], now)),
                ("finished", _told(run["finished_at"], now)),
                ("took", lasted(run, now)),
                *pairs(run, now),
                ("jobs", counted(run)),
                ("retry of", run.get("retry_of")),
            ]
        )
    )
    jobs = run.get("jobs") or []
    if jobs:
        headers = ("JOB", "STATUS", "SUBMISSION", "INSTANCE", "TOOK", "EXIT", "MESSAGE")
        rows = [
            (
                f"{job['replica']}-{job['node']}",
                job["status"],
                job["submission"],
                job.get("instance_name") or job["instance"],
                lasted(job, now),
                exit_of(job),
                "; ".join(filter(None, (*ports(job), job["message"] or job["termination_reason"]))),
            )
            for job in jobs
        ]
        screen.out()
        screen.out(screen.table(headers, rows, spare=("SUBMISSION", "TOOK", "INSTANCE")))
    if len(jobs) < (run.get("counts") or {}).get("total", 0):
        screen.note(f"These are the first {len(jobs)}; `stoker ps -a --replicas` shows each job.")


def ports(job: Json) -> Iterator[str]:
    """Where what its container listens on is reached."""
    for port in job.get("ports", ()):
        yield f"{port['inside']} is 127.0.0.1:{port['on_host']} of its host"


def _told(time: str | None, now: float) -> str:
    return f"{moment.clock(time)} ({moment.ago(time, now)})" if time else ""


def lasted(thing: Json, now: float) -> str:
    """How long a run or a job has been running, or did."""
    if not thing["started_at"]:
        return ""
    ended = moment.parse(thing["finished_at"]) if thing["finished_at"] else now
    return moment.span(ended - moment.parse(thing["started_at"]))


def exit_of(job: Json) -> str:
    if job.get("exit_signal"):
        return f"signal {job['exit_signal']}"
    return "" if job["exit_code"] is None else str(job["exit_code"])


@command(
    "why",
    short_help="Explain why a run is where it is.",
    example="""
    stoker why train-1
    stoker why train-1 --json
    """,
)
@run_argument
@json_option
@pass_session
def why(session: Session, run: str, as_json: bool) -> None:
    """Explain why a run waits, or why it ended as it did."""
    from stoker.client import run as runs

    with suggesting(session, run):
        told = runs.why(session.client, run)
    if as_json:
        screen.show_json(told)
        return
    show_why(told)


def show_why(told: Json) -> None:
    """The sentence, and below it the place in the queue and what stands against each machine and each offer."""
    screen.out(told["sentence"])
    show_numbers(told)


def hint_of(told: Json) -> str:
    """What to do about it, where that is not in the sentence."""
    from stoker.core.block import ENGINE

    return NO_ENGINE if told.get("limit") == ENGINE else ""


def show_numbers(told: Json) -> None:
    if hint := hint_of(told):
        screen.out(f"  {hint}")
    if told.get("place"):
        next_try = f"; tried again {told['next']}" if told.get("next") else ""
        screen.out(f"  {told['place']} of {told['waiting']} in the queue{next_try}")
    if told.get("replicas_waiting", 0) > 1:
        some = ", ".join(map(str, told["replicas"][:SHOWN_REPLICAS]))
        more = "…" if told["replicas_waiting"] > SHOWN_REPLICAS else ""
        screen.out(f"  waiting replicas: {some}{more}")
    reasons = told["reasons"]
    if not (len(reasons) == 1 and reasons[0]["name"] in told["sentence"]):  # else it was just said
        for reason in reasons:
            screen.out(f"  {reason['name']}: {reason['sentence']}")
        if told["more"]:
            screen.out(f"  … and {told['more']} more")
    for offer in told.get("offers", ()):
        penalty = f", penalty {offer['penalty']:.1f}" if offer["penalty"] >= LEAST_PENALTY else ""
        screen.out(f"  {offer['offer']}, {offer['price']:g} an hour{penalty}: {offer['sentence']}")
    if told.get("more_offers"):
        screen.out(f"  … and {told['more_offers']} more offers")


@command(
    "stop",
    short_help="Stop runs.",
    example="""
    stoker stop train-1
    stoker stop train-1 train-2 --abort   # at once, without a grace period
    stoker stop --all -y
    """,
)
@runs_argument
@click.option("--all", "everything", is_flag=True, help="All unfinished runs of the project.")
@click.option("--abort", is_flag=True, help="Kill them, without time to end in good order.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask; only --all asks.")
@json_option
@pass_session
def stop(session: Session, runs: tuple[str, ...], everything: bool, abort: bool, yes: bool, as_json: bool) -> None:
    """Stop runs. It is accepted at once; `stoker wait` waits until they have ended."""
    from stoker.client import run

    if everything == bool(runs):
        raise click.UsageError("Name the runs to stop, or say --all.")
    asked_at = session.now()
    if everything:
        confirm(f"Stop all unfinished runs of project {session.config.project}?", yes)
        stopped = run.stop_all(session.client, abort=abort)
    else:
        with suggesting(session, *runs):
            stopped = run.stop(session.client, runs, abort=abort)
    if as_json:
        screen.show_json(stopped)
        return
    if not stopped:
        screen.note("There was nothing to stop.")
    for each in stopped:
        # What waits ends in the very moment in which it is stopped.
        late = run.finished(each) and bool(ended := each["finished_at"]) and moment.parse(ended) < asked_at
        screen.out(f"{each['name']}  {screen.state(each['status'])}{'  had ended already' if late else ''}")


@command(
    "retry",
    short_help="Do again what failed of a run.",
    example="""
    stoker retry train-1
    stoker retry sweep --json | jq .counts.total
    """,
)
@run_argument
@json_option
@pass_session
def retry(session: Session, run: str, as_json: bool) -> None:
    """Do again what did not get done of a finished run, be it that it failed or that it was stopped.

    It is a new run of the same name; of a run of many jobs it has only those replicas that are not done, under the
    numbers that they had. The old run and its logs stay.
    """
    from uuid import uuid4

    from stoker.client import run as runs

    with suggesting(session, run):
        again = runs.retry(session.client, run, key=str(uuid4()))
    if as_json:
        screen.show_json(again)
        return
    total = again["counts"]["total"]
    many = f"  {total} jobs of it are done again" if total > 1 else ""
    screen.out(f"{again['name']}  {screen.state(again['status'])}{many}")
    screen.note(f"`stoker logs -f {again['name']}` shows its log.")


def confirm(question: str, yes: bool, *, default: bool = False) -> None:
    """Asks on the terminal; where there is none, somebody has to have said yes before."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("There is no terminal to ask on; add -y.")
    if not click.confirm(question, default=default, err=True):
        raise UserError("Nothing was done.")


@command(
    "delete",
    short_help="Delete finished runs and their logs.",
    example="""
    stoker delete train-1
    stoker delete train-1 train-2 -y
    """,
)
@runs_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_session
def delete(session: Session, runs: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete finished runs and their logs, for good: of each name the latest, or the one whose id begins so."""
    from stoker.client import run

    if not runs:
        raise click.UsageError("Name the runs to delete.")
    confirm(f"Delete {', '.join(runs)} and {'its log' if len(runs) == 1 else 'their logs'}?", yes)
    deleted, refused = [], False
    for name in runs:
        try:
            with suggesting(session, name):
                run.delete(session.client, name)
        except Unavailable:
            raise
        except StokerError as error:
            screen.complain(error.sentence, error.hint)
            refused = True
        else:
            deleted.append(name)
            if not as_json:
                screen.out(f"{name}  deleted")
    if as_json:
        screen.show_json({"deleted": deleted})
    if refused:
        raise click.exceptions.Exit(exits.FAILED)


@command(
    "wait",
    short_help="Wait until runs have finished.",
    example="""
    stoker wait train-1 && echo it worked
    stoker wait train-1 train-2 --timeout 10m
    """,
)
@runs_argument
@click.option("--timeout", metavar="TIME", help="Give up after so long (30s, 10m, 2h).")
@json_option
@pass_session
def wait(session: Session, runs: tuple[str, ...], timeout: str | None, as_json: bool) -> None:
    """Wait until runs have finished.

    The exit code is the job's own when it failed by itself; else 0 done, 100 failed, 101 not finished in time,
    102 not found, 103 stopped. Of several runs it is that of the first one that did not end well.
    """
    from stoker.cli.attach import Away
    from stoker.client import run

    if not runs:
        raise click.UsageError("Name the runs to wait for.")
    until = session.now() + moment.seconds_of(timeout) if timeout else None
    ended: list[Json] = []
    codes: list[int] = []
    away = Away()
    with suggesting(session, runs[0]), suppress(NotFound):
        # A server that goes away is waited for, but not one that never was there.
        run.get(session.client, runs[0])
    for name in runs:
        left_s = None if until is None else max(0.0, until - session.now())
        try:
            with suggesting(session, name):
                ended.append(run.wait(session.client, name, timeout_s=left_s, away=away))
        except NotFound as error:
            screen.complain(error.sentence, error.hint)
            codes.append(exits.RUN_NOT_FOUND)
            continue
        away.back()
        codes.append(exits.of_run(ended[-1]))
        if not as_json:
            screen.out(sentence(ended[-1], session.now()))
    if as_json:
        screen.show_json(ended if len(runs) > 1 else ended[0] if ended else None)
    raise click.exceptions.Exit(next((code for code in codes if code), exits.OK))


def sentence(run: Json, now: float) -> str:
    """How it is, in a line."""
    took = f" after {lasted(run, now)}" if lasted(run, now) else ""
    code = f" with exit code {run['exit_code']}" if run["exit_code"] else ""
    name, status, said = run["name"], run["status"], run["status_message"]
    message = f": {said}" if said and status != "DONE" and said != f"exited with {run['exit_code']}" else ""
    match status:
        case "DONE":
            return f"{name} {screen.paint('done', 'green')}{took}"
        case "FAILED":
            return f"{name} {screen.paint('failed', 'red')}{code}{took}{message}"
        case "TERMINATED":
            return (
                f"{name} {said}{took}" if said.startswith(("stopped", "aborted")) else f"{name} stopped{took}{message}"
            )
        case _:
            return f"{name} is {screen.state(status)}{message}"
