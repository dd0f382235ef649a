"""Writes a job's log exactly as the job wrote it: its stdout to ours, its stderr to ours, byte for byte."""

import os
import select
import threading
from collections.abc import Iterable
from typing import Final

from stoker.cli import exits
from stoker.cli.moment import stamp
from stoker.wire.frame import Frame, Stream, side

STDOUT: Final = 1
STDERR: Final = 2


def destination(frame: Frame) -> int:
    return STDERR if side(frame.stream) is Stream.STDERR else STDOUT


def leave_with_the_reader() -> None:
    """Ends this process when whoever reads its output has gone (`stoker logs -f x | head -1`).

    A log that is silent for hours would otherwise keep the pipe, and with it the shell, waiting for its next byte.
    """
    threading.Thread(target=_leave, daemon=True).start()


def _leave() -> None:
    ends = select.poll()
    # Nothing is asked for: what is left to be told is that the other end was closed.
    ends.register(STDOUT, 0)
    ends.poll()
    os._exit(exits.READER_GONE)


class Printer:
    """`write` takes frames as they come; with `timestamps` each line begins with the time of its first byte."""

    def __init__(self, *, timestamps: bool = False) -> None:
        self._timestamps = timestamps
        self._within_line = {STDOUT: False, STDERR: False}

    def write(self, frames: Iterable[Frame]) -> None:
        # Both descriptors may be the same terminal, so what came first is written first.
        waiting, to = bytearray(), STDOUT
        for frame in frames:
            goes_to = destination(frame)
            if goes_to != to:
                write_all(to, waiting)
                waiting, to = bytearray(), goes_to
            waiting += self._stamped(frame, to) if self._timestamps else frame.data
        write_all(to, waiting)

    def _stamped(self, frame: Frame, to: int) -> bytes:
        prefix = stamp(frame.time_us).encode() + b" "
        lines = split(frame.data)
        within = self._within_line[to]
        self._within_line[to] = not lines[-1].endswith(b"\n")
        return (b"" if within else prefix) + prefix.join(lines)


def split(data: bytes) -> list[bytes]:
    """At newlines only: a progress bar goes back to the beginning of its line, and begins no new one."""
    parts = [part + b"\n" for part in data.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return parts if parts[-1] else parts[:-1]


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
