"""`stoker task logs`: what a task has written, exactly."""

import time
from typing import Final

import click

from stoker.cli import screen
from stoker.cli.command import Session, command, pass_session
from stoker.cli.printer import STDERR, STDOUT, leave_with_the_reader, write_all
from stoker.cli.task_wait import Bar
from stoker.client import task as tasks
from stoker.client.client import Client, Json
from stoker.core.errors import Unavailable

LOOK_S: Final = 0.2
LONGEST_LOOK_S: Final = 1.0
TO: Final = {"stdout": STDOUT, "stderr": STDERR}


@command(
    "logs",
    short_help="Show what a task has written.",
    example="""
    stoker task logs 0199d4c2-7f3a
    stoker task logs -f train-7
    stoker task logs train-7 --attempt 1 --stderr
    """,
)
@click.argument("ref", metavar="TASK")
@click.option("-f", "--follow", is_flag=True, help="Go on until it has ended; when it is tried again, with that.")
@click.option("--attempt", metavar="N", type=click.IntRange(min=1), help="Of this attempt; else of the latest.")
@click.option("--stdout", "only_stdout", is_flag=True, help="Only its stdout.")
@click.option("--stderr", "only_stderr", is_flag=True, help="Only its stderr, on our stdout.")
@pass_session
def logs(session: Session, ref: str, follow: bool, attempt: int | None, only_stdout: bool, only_stderr: bool) -> None:
    """Show what a task has written: its stdout on stdout, its stderr on stderr, byte for byte.

    The two are kept apart, so which of them came first is not known; what is followed is written as it comes.
    """
    if only_stdout and only_stderr:
        raise click.UsageError("Say --stdout or --stderr; without them it is both.")
    to = {"stderr": STDOUT} if only_stderr else {"stdout": STDOUT} if only_stdout else TO
    id = tasks.found(session.client, ref)
    task = tasks.get(session.client, id)
    if task["output"] != "server":
        screen.note(f"Its output is not kept by the server: `output: {task['output']}`.")
    if follow:
        leave_with_the_reader()
    shown = _Shown(session.client, id, to, follow)
    number = attempt or _latest(task)
    if number is None:
        if not follow:
            screen.note(f"No worker has begun it: it is {task['state']}.")
            return
        number = shown.begins(0)
    while number is not None:
        shown.attempt(number)
        number = shown.begins(number) if follow and not attempt else None


def _latest(task: Json) -> int | None:
    info = task.get("execution_info")
    return int(info["attempt"]) if info else None


class _Shown:
    def __init__(self, client: Client, id: str, to: dict[str, int], follow: bool) -> None:
        self._client, self._id, self._to, self._follow = client, id, to, follow
        self._bar = Bar(shown=False)

    def attempt(self, number: int) -> None:
        """Until it is complete, or all that there is now."""
        offsets = dict.fromkeys(self._to, 0)
        pause_s = LOOK_S
        while offsets:
            moved = False
            for stream, offset in list(offsets.items()):
                piece = self._piece(stream, number, offset)
                if piece is None:
                    continue
                write_all(self._to[stream], piece.data)
                moved = moved or bool(piece.data)
                offsets[stream] = piece.next_offset
                if piece.complete or (not self._follow and not piece.data):
                    del offsets[stream]
            pause_s = LOOK_S if moved else min(LONGEST_LOOK_S, pause_s * 1.5)
            if offsets and not moved:
                time.sleep(pause_s)

    def _piece(self, stream: str, number: int, offset: int) -> tasks.Piece | None:
        try:
            piece = tasks.output(self._client, self._id, stream=stream, attempt=number, offset=offset)
        except Unavailable as error:
            if not self._follow:
                raise
            self._bar.away(error)
            return None
        self._bar.back()
        return piece

    def begins(self, before: int) -> int | None:
        """Waits for the attempt after this one; None when the task has ended without one."""
        while True:
            try:
                task = tasks.get(self._client, self._id)
            except Unavailable as error:
                self._bar.away(error)
            else:
                self._bar.back()
                latest = _latest(task)
                if latest is not None and latest > before:
                    if before:
                        screen.note(f"It is tried again; this is attempt {latest}.")
                    return latest
                if task["state"] in tasks.ENDED:
                    return None
            time.sleep(LONGEST_LOOK_S if before else LOOK_S)
