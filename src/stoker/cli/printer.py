"""Writes a job's log exactly as the job wrote it: its stdout to ours, its stderr to ours, byte for byte."""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from stoker.cli.moment import stamp
from stoker.wire.frame import Frame, Stream

STDOUT: Final = 1
STDERR: Final = 2
TAIL_BYTES: Final = 64 * 1024 * 1024
"""The most that `--tail` keeps in memory; of one endless line the end is shown."""


def destination(frame: Frame) -> int:
    """What a newer runner may call differently goes to stdout, so that nothing is lost."""
    return STDERR if frame.stream == Stream.STDERR else STDOUT


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
                _write_all(to, waiting)
                waiting, to = bytearray(), goes_to
            waiting += self._stamped(frame, to) if self._timestamps else frame.data
        _write_all(to, waiting)

    def _stamped(self, frame: Frame, to: int) -> bytes:
        prefix = stamp(frame.time_us).encode() + b" "
        lines = _split(frame.data)
        within = self._within_line[to]
        self._within_line[to] = not lines[-1].endswith(b"\n")
        return (b"" if within else prefix) + prefix.join(lines)


def _split(data: bytes) -> list[bytes]:
    """At newlines only: a progress bar goes back to the beginning of its line, and begins no new one."""
    parts = [part + b"\n" for part in data.split(b"\n")]
    parts[-1] = parts[-1][:-1]
    return parts if parts[-1] else parts[:-1]


def _write_all(descriptor: int, data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def later(frames: Iterable[Frame], since_us: int) -> Iterator[Frame]:
    """Those from then on."""
    return (frame for frame in frames if frame.time_us >= since_us)


class _Part(NamedTuple):
    """A frame and the numbers of its lines: `first`, then those behind `before`, up to `last`."""

    frame: Frame
    first: int
    before: int
    last: int


class Tail:
    """Keeps the last lines of what is written to it, for a printer. Lines are numbered in the order they began."""

    def __init__(self, lines: int) -> None:
        self._lines = lines
        self._parts: deque[_Part] = deque()
        self._bytes = 0
        self._count = 0
        """Lines begun so far."""
        self._open: dict[int, int] = {}
        """The line that a stream is in the middle of."""

    def write(self, frames: Iterable[Frame]) -> None:
        for frame in frames:
            to = destination(frame)
            if to not in self._open:
                self._count += 1
            first, before = self._open.pop(to, self._count), self._count
            ended = frame.data.count(b"\n")
            whole = frame.data.endswith(b"\n")
            self._count += ended - whole
            last = self._count if ended > whole else first
            if not whole:
                self._open[to] = last
            self._keep(_Part(frame, first, before, last))

    def _keep(self, part: _Part) -> None:
        self._parts.append(part)
        self._bytes += len(part.frame.data)
        while self._parts and (self._parts[0].last <= self._count - self._lines or self._bytes > TAIL_BYTES):
            self._bytes -= len(self._parts.popleft().frame.data)

    def kept(self) -> Iterator[Frame]:
        """A line whose beginning is gone may have an end that stands behind another stream's line."""
        beyond = self._count - self._lines
        for frame, first, before, _ in self._parts:
            for number, piece in enumerate(_split(frame.data)):
                if (before + number if number else first) > beyond:
                    yield Frame(frame.stream, frame.time_us, piece)
