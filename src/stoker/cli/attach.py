"""Being attached to a run: its log as it is written, its end, and what Ctrl-C means meanwhile.

A Ctrl-C while bytes are being written waits until they are written and counted; one while we wait for the server
breaks off that wait, and the log is read on from the offset that was reached. So whatever the person decides,
nothing is shown twice and nothing is missing. The run itself never notices: only `stop` and `abort` reach it.
"""

import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Final

import click

from stoker.cli import exits, screen
from stoker.cli.live import Live
from stoker.cli.printer import Printer
from stoker.cli.run import sentence
from stoker.client import log, run
from stoker.client.client import Client, Json
from stoker.core.errors import NotFound, StokerError, Unavailable
from stoker.wire.frame import decode

QUICK_S: Final = 0.7
"""A run that starts within this time needs no explanation."""
LOOK_S: Final = 1.0
NEXT_SUBMISSION_S: Final = 1.0


class Interrupts:
    """While it is entered, Ctrl-C raises KeyboardInterrupt in places that are `open` for it, and waits elsewhere."""

    def __init__(self) -> None:
        self._open = self._pending = False
        self._before: object = None

    def __enter__(self) -> "Interrupts":
        self._before = signal.getsignal(signal.SIGINT)
        # A shell that starts us in the background of a script has us ignore it; so it stays.
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        # The second time it is meant: what we are in the middle of does not come to an end.
        if not self._open and not self._pending:
            self._pending = True
            return
        self._pending = False
        raise KeyboardInterrupt

    def open(self) -> AbstractContextManager[None]:
        return self._as(True)

    def closed(self) -> AbstractContextManager[None]:
        return self._as(False)

    @contextmanager
    def _as(self, is_open: bool) -> Iterator[None]:
        before, self._open = self._open, is_open
        try:
            self._catch_up()
            yield
        finally:
            self._open = before
        self._catch_up()

    def _catch_up(self) -> None:
        if self._open and self._pending:
            self._pending = False
            raise KeyboardInterrupt


class Status:
    """A sentence on stderr that says what a run waits for, until its log begins."""

    def __init__(self, client: Client, run_id: str) -> None:
        self._client, self._run_id = client.again(), run_id
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._shown, self._live = "", Live()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Status":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._over.set()
        with self._lock:
            self._live.clear()
            self._shown = ""

    def _watch(self) -> None:
        wait_s = QUICK_S
        while not self._over.wait(wait_s):
            wait_s = LOOK_S
            try:
                seen = run.get(self._client, self._run_id)
                if seen["status"] not in ("SUBMITTED", "PROVISIONING", "PENDING"):
                    return
                why = run.why(self._client, self._run_id)["sentence"] if seen["status"] == "SUBMITTED" else ""
            except StokerError:
                continue
            self._show(screen.plain(why or f"{seen['name']} is {seen['status']} {seen['status_message']}"))

    def _show(self, text: str) -> None:
        with self._lock:
            if self._over.is_set() or text == self._shown:
                return
            self._shown = text
            if sys.stderr.isatty():
                self._live.show(text)
            else:
                screen.note(text)


class Away:
    """Says once that the server is away, and once that it is back."""

    def __init__(self) -> None:
        self._is_away = False

    def __call__(self, error: Unavailable) -> None:
        if not self._is_away:
            screen.note(f"{error.sentence} The run does not depend on it; trying again, Ctrl-C to leave.")
        self._is_away = True

    def back(self) -> None:
        if self._is_away:
            screen.note("The server is back.")
        self._is_away = False


class Attached:
    """`attend` returns the exit code that the run's end means, or that of leaving before."""

    def __init__(self, client: Client, submitted: Json, printer: Printer | None, interrupts: Interrupts) -> None:
        self._client, self._run, self._printer, self._interrupts = client, submitted, printer, interrupts
        self._id, self._name = submitted["id"], submitted["name"]
        self._offset, self._complete = 0, printer is None
        self._submission = _latest(submitted)
        self._away = Away()
        self._stopping = False

    def attend(self) -> int:
        while True:
            try:
                with self._interrupts.open():
                    self._watch()
                return exits.of_run(self._run)
            except KeyboardInterrupt:
                if not self._goes_on():
                    return exits.RUN_UNFINISHED
            except NotFound as error:
                screen.complain(error.sentence, "Somebody has deleted it.")
                return exits.RUN_NOT_FOUND

    @property
    def run(self) -> Json:
        return self._run

    def _watch(self) -> None:
        """Follows the log of each submission, then waits for the end."""
        with Status(self._client, self._id) as status:
            while not run.finished(self._run) or not self._complete:
                if not self._complete:
                    self._follow(status)
                self._await(None if self._printer is None else NEXT_SUBMISSION_S)

    def _await(self, patience_s: float | None) -> None:
        with suppress(Unavailable):
            self._run = run.wait(self._client, self._id, timeout_s=patience_s, away=self._away)
            self._away.back()
            # A run that is tried again has another log; none is left out, however soon the next one follows.
            if self._printer is not None and self._complete and self._is_tried_again():
                self._submission, self._offset, self._complete = self._submission + 1, 0, False

    def _is_tried_again(self) -> bool:
        if run.finished(self._run) and _latest(self._run) <= self._submission:
            return False
        return log.exists(self._client, self._id, log.Which(submission=self._submission + 1))

    def _follow(self, status: Status) -> None:
        assert self._printer is not None
        which = log.Which(submission=self._submission)
        for piece in log.follow(self._client, self._id, which, self._offset, self._away):
            self._away.back()
            with self._interrupts.closed():
                if piece.frames:
                    status.end()
                    self._printer.write(decode(piece.frames))
                self._offset, self._complete = piece.next_offset, piece.complete

    def _goes_on(self) -> bool:
        """Ctrl-C: asks what is meant. Leaving is always safe, so that is what silence means."""
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            self._tell_detached()
            return False
        second = "[a]bort" if self._stopping else "[s]top"
        while True:
            match self._answer(f"\n{self._name}: [d]etach (it runs on), {second}, [c]ontinue [d]: "):
                case "c":
                    screen.note("Going on.")
                    return True
                case "s" | "a" as how:
                    self._stop(abort=how == "a")
                    return True
                case "d" | "":
                    self._tell_detached()
                    return False
                case other:
                    screen.note(f"{other!r} is none of them.")

    def _answer(self, question: str) -> str:
        """The first letter of what is typed; empty also for Ctrl-C, Ctrl-D and Enter."""
        click.echo(question, nl=False, err=True)
        try:
            with self._interrupts.open():
                # A signal just before a read would be noticed when that returns; so we read when there is something.
                while not select.select([sys.stdin], [], [], LOOK_S / 5)[0]:
                    pass
                return sys.stdin.readline().strip().lower()[:1]
        except KeyboardInterrupt:
            screen.note("")
            return ""

    def _stop(self, *, abort: bool) -> None:
        try:
            run.stop(self._client, [self._id], abort=abort)
        except StokerError as error:
            screen.complain(error.sentence, error.hint)
            return
        screen.note(f"Stopping {self._name}; its log goes on until it has ended.")
        self._stopping = True

    def _tell_detached(self) -> None:
        screen.note(f"Detached: {self._name} runs on. `stoker logs -f {self._name}` goes on with its log.")


def _latest(seen: Json) -> int:
    """The number of the latest submission of its first job, whose log is shown."""
    jobs = seen.get("jobs") or ()
    first = [(job["replica"], job["node"]) for job in jobs[:1]]
    return max((job["submission"] for job in jobs if (job["replica"], job["node"]) in first), default=1)


def conclude(attached: Attached, now: float) -> None:
    """The last line, beside the log."""
    if run.finished(attached.run):
        screen.note(sentence(attached.run, now))
