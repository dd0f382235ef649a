"""`stoker logs`: what a job has written, exactly."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

from stoker.cli import moment, screen
from stoker.cli.command import Session, command, pass_session, run_argument, suggesting
from stoker.cli.json_line import JsonLines
from stoker.cli.printer import Printer, leave_with_the_reader
from stoker.core.errors import NotFound, Unavailable
from stoker.wire.log import Skipping

if TYPE_CHECKING:
    from stoker.client.client import Client, Json
    from stoker.client.log import First, Piece, Which

NEXT_SUBMISSION_S: Final = 1.0


@command(
    "logs",
    short_help="Show what a run has written.",
    example="""
    stoker logs train-1
    stoker logs -f --tail 20 train-1
    stoker logs train-1 --since 10m --timestamps
    stoker logs train-1 2>/dev/null     # only what it wrote to stdout
    stoker logs sweep --replica 17      # of a run of many jobs; else of the first
    stoker logs train-1 --runner        # what its agent did, and why
    stoker logs train-1 --json | jq -r 'select(.stream == "stderr") | .time + " " + .text'
    """,
)
@run_argument
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on until the log is complete; a run that is tried again, until its last log is.",
)
@click.option("--since", metavar="TIME", help="Only what was written since: 10m, 2h, or a moment.")
@click.option("--tail", metavar="N", type=click.IntRange(min=0), help="Only the last N lines, at most 100000.")
@click.option("--job", metavar="ID", help="Of this job of the run.")
@click.option("--replica", metavar="N", type=click.IntRange(min=0), help="Of this replica.")
@click.option("--node", metavar="N", type=click.IntRange(min=0), help="Of this node of the replica.")
@click.option("--submission", metavar="N", type=click.IntRange(min=1), help="Of this try; else of the latest.")
@click.option("--timestamps", "-t", is_flag=True, help="Put the time before each line, in your time zone.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each line, as told above.")
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
    node: int | None,
    submission: int | None,
    timestamps: bool,
    as_json: bool,
    runner: bool,
) -> None:
    """Show what a run has written: its stdout on stdout, its stderr on stderr, byte for byte.

    Times are those of the host's clock. Where that was set back, --since begins at one of the places where it passed
    the moment, and all that is behind it is shown.

    With --json each line of the log is one object, printed when the line has ended:

    \b
    {"time": "2026-05-01T12:00:00.000000Z", "stream": "stdout", "offset": 0, "text": "epoch 1"}

    `time` is in UTC and `stream` is stdout, stderr or runner. `offset` is that of the frame the line begins in, as
    the API takes it. A line that is not UTF-8 has its bytes in `base64`, and U+FFFD in their place in `text`.
    `"partial": true` says that no newline stands behind it: the log ends there, or the line is longer than 1 MiB and
    goes on in the next object.
    """
    from stoker.client import log

    which = log.Which(job=job, replica=replica, node=node, submission=submission, runner=runner)
    since_at = moment.since(since, session.now()) if since else None
    with suggesting(session, run):
        first = log.begin(session.client, run, which, tail=tail, since=since_at)
    # From here on it is this run and this try of it, whatever is submitted under its name meanwhile.
    shown = _Shown(session.client, run, first, which, JsonLines() if as_json else Printer(timestamps=timestamps))
    with _deleted(run):
        shown.until_now()
        if follow:
            leave_with_the_reader()
            shown.until_complete()
            while not job and not submission and shown.tried_again():
                shown.until_complete()
    shown.end()


@contextmanager
def _deleted(run: str) -> Iterator[None]:
    try:
        yield
    except NotFound:
        raise NotFound(f"{run} was deleted meanwhile, and the rest of its log with it.") from None


class _Shown:
    """The log of one submission, and how far it has been printed."""

    def __init__(self, client: "Client", name: str, first: "First", which: "Which", paper: Printer | JsonLines) -> None:
        from stoker.cli.attach import Away

        self._client, self._name, self._run = client, name, first.run
        self._submission, self._which = first.submission, which.of(first.submission)
        self._skipping, self._paper = Skipping(first.skip), paper
        self._offset, self._behind, self._complete = 0, False, False
        self._away = Away()
        self._print(first)

    def _print(self, piece: "Piece") -> None:
        frames = self._skipping.rest(piece.located())
        if isinstance(self._paper, JsonLines):
            self._paper.write(frames)
        else:
            self._paper.write(frame for _, frame in frames)
        self._offset, self._behind, self._complete = piece.next_offset, piece.behind, piece.complete

    def until_now(self) -> None:
        from stoker.client import log

        if self._behind:
            for piece in log.backlog(self._client, self._run, self._which, self._offset):
                self._print(piece)

    def until_complete(self) -> None:
        from stoker.cli.attach import Status
        from stoker.client import log

        if self._complete:
            return
        with Status(self._client, self._run) as status:
            if self._offset:
                status.end()
            for piece in log.follow(self._client, self._run, self._which, self._offset, self._away):
                self._away.back()
                if piece.frames:
                    status.end()
                self._print(piece)

    def tried_again(self) -> bool:
        """Waits for the next submission; false when the run has finished without one."""
        from stoker.client import log
        from stoker.client import run as runs

        following, patience_s = self._which.of(self._submission + 1), 0.0
        while True:
            with suppress(Unavailable):
                seen = runs.wait(self._client, self._run, timeout_s=patience_s, away=self._away)
                self._away.back()
                if log.exists(self._client, self._run, following):
                    break
                if runs.finished(seen) or self._is_done(seen):
                    return False
            patience_s = NEXT_SUBMISSION_S
        self.end()
        self._submission, self._which, self._offset, self._complete = self._submission + 1, following, 0, False
        screen.note(f"{self._name} is tried again; this is submission {self._submission}.")
        return True

    def _is_done(self, seen: "Json") -> bool:
        """What went well is not tried again, however long the other jobs of its run take."""
        jobs = seen.get("jobs") or ()
        first = jobs[0]["replica"] if jobs else 0
        this = (first if self._which.replica is None else self._which.replica, self._which.node or 0, self._submission)
        return any((job["replica"], job["node"], job["submission"]) == this and job["status"] == "DONE" for job in jobs)

    def end(self) -> None:
        if isinstance(self._paper, JsonLines):
            self._paper.flush()
