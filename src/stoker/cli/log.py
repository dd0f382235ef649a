"""`stoker logs`: what a job has written, exactly."""

import click

from stoker.cli import moment
from stoker.cli.command import Session, command, pass_session, run_argument, suggesting
from stoker.cli.printer import Printer, Tail, later
from stoker.wire.frame import decode


@command(
    "logs",
    short_help="Show what a run has written.",
    example="""
    stoker logs train-1
    stoker logs -f --tail 20 train-1
    stoker logs train-1 --since 10m --timestamps
    stoker logs train-1 2>/dev/null     # only what it wrote to stdout
    stoker logs train-1 --runner        # what its agent did, and why
    """,
)
@run_argument
@click.option("-f", "--follow", is_flag=True, help="Go on until the log is complete.")
@click.option("--since", metavar="TIME", help="Only what was written since: 10m, 2h, or a moment.")
@click.option("--tail", metavar="N", type=click.IntRange(min=0), help="Only the last N lines.")
@click.option("--job", metavar="ID", help="Of this job of the run.")
@click.option("--replica", metavar="N", type=click.IntRange(min=0), help="Of this replica.")
@click.option("--submission", metavar="N", type=click.IntRange(min=1), help="Of this try; else of the latest.")
@click.option("--timestamps", "-t", is_flag=True, help="Put the time before each line.")
@click.option("--runner", is_flag=True, help="The agent's own log; kept where a job did not end well.")
@pass_session
def logs(
    session: Session,
    run: str,
    follow: bool,
    since: str | None,
    tail: int | None,
    job: str | None,
    replica: int | None,
    submission: int | None,
    timestamps: bool,
    runner: bool,
) -> None:
    """Show what a run has written: its stdout on stdout, its stderr on stderr, byte for byte."""
    from stoker.cli.attach import Away
    from stoker.client import log

    which = log.Which(job=job, replica=replica, submission=submission, runner=runner)
    since_us = int(moment.since(since, session.now()) * 1e6) if since else 0
    printer = Printer(timestamps=timestamps)
    kept = Tail(tail) if tail is not None else None
    away = Away()
    offset = 0
    with suggesting(session, run):
        for piece in log.backlog(session.client, run, which):
            (kept or printer).write(later(decode(piece.frames), since_us))
            offset, complete = piece.next_offset, piece.complete
    if kept:
        printer.write(kept.kept())
    if not follow or complete:
        return
    for piece in log.follow(session.client, run, which, offset, away):
        away.back()
        printer.write(later(decode(piece.frames), since_us))
