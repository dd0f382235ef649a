"""Frames on disk in segments named by the offset of their first byte, in the format of the server's log store.

One thread appends, any thread reads. What was read to the end by the server is forgotten segment by segment. Nothing
here is synced while it is written: a machine that crashes takes the job with it. Before the result of the job is
written, `sync` makes the log as durable as the result; so that this is never much, a segment is synced when the one
after the next begins. Most are forgotten before that.
"""

import os
import threading
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from stoker.core.errors import Conflict, UserError
from stoker.runner.limits import SEGMENT_BYTES
from stoker.wire.frame import FRAME_BYTES, OVERHEAD, frame_end, intact, whole

_MOST_BUFFERS: Final = 1024
"""In one call to the kernel (IOV_MAX)."""


class Segments:
    """The segments of one log, and the last of them open for writing."""

    def __init__(self, directory: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory, self._segment_bytes = directory, segment_bytes
        self._guard = threading.Lock()
        self._file: int | None = None
        self._bases = bases_of(directory)
        self._unsynced = set(self._bases)
        self.end = self._recover() if self._bases else 0
        """Up to here the frames can be read."""

    def _recover(self) -> int:
        """Cuts off what a crash left half written, and says where the log ends."""
        with open(self._path(self._bases[-1]), "r+b") as file:
            good = intact(memoryview(file.read()))
            file.truncate(good)
        return self._bases[-1] + good

    def append(self, buffers: Sequence[bytes]) -> None:
        """Adds whole frames, all of them or none: after an error the next append writes to the same place."""
        if self._file is None or self.end - self._bases[-1] >= self._segment_bytes:
            self._begin()
        assert self._file is not None
        at = self.end - self._bases[-1]
        for first in range(0, len(buffers), _MOST_BUFFERS):
            at = _write(self._file, list(buffers[first : first + _MOST_BUFFERS]), at)
        self.end = self._bases[-1] + at

    def _begin(self) -> None:
        """Opens the segment to append to; each step may fail and be done again."""
        for base in sorted(self._unsynced)[:-1]:
            self._sync_segment(base)
        last = self._bases[-1] if self._bases else 0
        base = last if self._file is None and self.end - last < self._segment_bytes else self.end
        self._make_directory()
        descriptor = os.open(self._path(base), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if self._file is not None:
            os.close(self._file)
        self._file = descriptor
        with self._guard:
            self._unsynced.add(base)
            if base not in self._bases:
                self._bases.append(base)

    def sync(self) -> None:
        """Everything that is not forgotten is on disk."""
        if self.end == 0:
            return
        for base in sorted(self._unsynced):
            self._sync_segment(base)
        self._make_directory()
        sync_directory(self._directory)

    def _make_directory(self) -> None:
        """Once there is something to keep; also again, where somebody deleted it, since the job has to end."""
        self._directory.mkdir(mode=0o700, exist_ok=True)

    def _sync_segment(self, base: int) -> None:
        with suppress(FileNotFoundError):
            descriptor = os.open(self._path(base), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)
        self._unsynced.discard(base)

    def read(self, offset: int, limit: int) -> bytes:
        """Whole frames from `offset` on, about `limit` bytes and at least one frame; nothing at the end."""
        # What lies behind this is being written now, or is what a failed write left.
        left = self.end - offset
        if left < 0:
            raise Conflict(f"The log ends at {self.end}, before {offset}.", code="log_offset")
        if left == 0:
            return b""
        with self._guard:
            place = bisect_right(self._bases, offset) - 1
            base = self._bases[place] if place >= 0 else None
        if base is None:
            raise _forgotten(offset)
        try:
            descriptor = os.open(self._path(base), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _forgotten(offset) from None
        try:
            data = os.pread(descriptor, min(limit, left), offset - base)
            size = whole(memoryview(data))
            if size == 0:
                data = os.pread(descriptor, min(FRAME_BYTES + OVERHEAD, left), offset - base)
                size = whole(memoryview(data))
        finally:
            os.close(descriptor)
        if size == 0 or frame_end(memoryview(data), 0) is None:
            raise UserError(
                f"No frame begins at {offset}.",
                hint="Go on from where the last answer ended, or begin at 0.",
                code="log_offset",
            )
        return data[:size] if size < len(data) else data

    def forgettable(self, offset: int) -> bool:
        """Whether `forget` would have something to do."""
        return len(self._bases) > 1 and self._bases[1] <= offset

    def forget(self, offset: int) -> None:
        """Deletes the segments that lie before `offset` entirely."""
        while True:
            with self._guard:
                if not self.forgettable(offset):
                    return
                base = self._bases.pop(0)
            self._path(base).unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _path(self, base: int) -> Path:
        return self._directory / f"{base:020}.log"


def bases_of(directory: Path | int) -> list[int]:
    """Of a directory, or of one that is open."""
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return []
    return sorted(int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdecimal())


def sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, buffers: list[bytes], at: int) -> int:
    """Writes all of it at `at`, and says where it ends."""
    end = at + sum(map(len, buffers))
    at += os.pwritev(descriptor, buffers, at)
    if at < end:
        # Rare: the kernel took a part, as it does when the disk is about to be full.
        rest = memoryview(b"".join(buffers))[at - end :]
        while rest:
            written = os.pwrite(descriptor, rest, end - len(rest))
            rest = rest[written:]
    return end


def _forgotten(offset: int) -> Conflict:
    return Conflict(
        f"What was at {offset} is forgotten: the server has said that it keeps it.",
        hint="Read it from the server.",
        code="log_forgotten",
    )
