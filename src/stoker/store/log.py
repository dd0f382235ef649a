"""The logs of jobs, as files: appended by offset, synced before anybody is told, read in bounded pieces.

**Address.** A log is one stream of frames (`wire/frame.py`), and an offset lies between two of them. So the bytes of
the job are kept exactly, and a repeated append needs no bookkeeping: the part before the end of the log is already
there and is skipped, the rest is new, and an offset beyond the end is a gap and refused.

**Files.** `ROOT/xx/JOB/` (xx are the last digits of the id: the first ones of a UUIDv7 are the time) holds segments
named by the offset of their first byte. A full segment is never touched again, so opening a log means looking at its
last segment only, however long the log is, and so does what is kept in memory: the place up to which the last segment
is known to be good.

**Crashes.** An append writes, syncs, and only then returns. After a crash the last segment may end in a part of a
frame, or in zeros that a file system left: the first append or read walks its frames, cuts the file behind the last
one whose checksum holds, and syncs. When a write fails (disk full), the file is cut back to where it was.

**Writers.** Appends to one job take turns by a lock in this process and by a file lock between processes. Readers
take no lock: they return the whole frames they find.
"""

import asyncio
import errno
import fcntl
import os
import shutil
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Final
from uuid import UUID
from weakref import WeakValueDictionary

from stoker.core.errors import Conflict, Unavailable, UserError
from stoker.core.ids import derived
from stoker.store.log_place import Place, Segment, last_lines, passed
from stoker.wire.frame import FRAME_BYTES, OVERHEAD, cut_short, frame_end, intact

APPEND_BYTES: Final = 1024 * 1024
READ_BYTES: Final = 1024 * 1024
SEGMENT_BYTES: Final = 8 * 1024 * 1024
QUOTA_BYTES: Final = 10 * 1024**3
KNOWN_LOGS: Final = 4096

_sync = getattr(os, "fdatasync", os.fsync)


def runner_log(job_id: UUID) -> UUID:
    """Under which id the log of the job's runner itself is kept."""
    return derived(job_id, "runner")


class LogGap(Conflict):
    """Bytes between `end` and the offset of an append are missing: send again from `end`."""

    code = "log_gap"

    def __init__(self, job_id: UUID, offset: int, end: int) -> None:
        super().__init__(f"The log of job {job_id} ends at {end}, before {offset}.", hint=f"Send it again from {end}.")
        self.end = end


class LogStore:
    """Keeps the logs below one directory; `quota_bytes` is the most that one job may keep."""

    def __init__(self, root: Path, *, quota_bytes: int = QUOTA_BYTES, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._root, self._quota_bytes, self._segment_bytes = root, quota_bytes, segment_bytes
        self._turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()
        self._known: dict[UUID, tuple[int, int]] = {}
        self._guard = threading.Lock()

    async def append(self, job_id: UUID, offset: int, frames: bytes, *, durable: bool = True) -> int:
        """Keeps whole frames that begin at `offset` and returns the end of the log, up to which all is on disk.

        Without `durable` it may be lost when the machine crashes.
        """
        if len(frames) > APPEND_BYTES:
            raise UserError(f"One append has {len(frames)} bytes.", hint=f"Send at most {APPEND_BYTES} at a time.")
        directory = self._directory(job_id)
        async with self._turn(job_id):
            return await asyncio.to_thread(self._append, job_id, directory, offset, frames, durable)

    async def read(self, job_id: UUID, offset: int, limit: int = READ_BYTES) -> bytes:
        """Whole frames from `offset` on, about `limit` bytes and at least one frame; nothing at the end of the log.

        An answer may be shorter than the log allows; the next read begins where it ended.
        """
        directory = self._directory(job_id)
        if offset < 0:
            raise UserError("The offset of a log is not negative.")
        if job_id not in self._known:
            await self.end(job_id)
        return await asyncio.to_thread(self._read, job_id, directory, offset, min(limit, READ_BYTES))

    async def end(self, job_id: UUID) -> int:
        """The offset at which the log ends now; zero for a job that wrote nothing."""
        directory = self._directory(job_id)
        async with self._turn(job_id):
            return await asyncio.to_thread(self._find_end, job_id, directory)

    async def place(self, job_id: UUID, *, tail: int | None = None, since_us: int | None = None) -> Place:
        """Where to begin to read for the last lines, for what was written since a time, or for the one of the other."""
        directory, end = self._directory(job_id), await self.end(job_id)
        return await asyncio.to_thread(self._place, job_id, directory, end, tail, since_us)

    async def delete(self, job_id: UUID) -> None:
        """Forgets the log; safe to call twice."""
        directory = self._directory(job_id)
        async with self._turn(job_id):
            self._forget(job_id)
            await asyncio.to_thread(self._delete, job_id, directory)

    def _directory(self, job_id: UUID) -> Path:
        if not isinstance(job_id, UUID):
            # It becomes a path, and a text that came from outside could lead anywhere.
            raise UserError(f"{job_id!r} is no job id.")
        return self._root / job_id.hex[-2:] / str(job_id)

    def _turn(self, job_id: UUID) -> asyncio.Lock:
        # The dictionary holds a lock only as long as somebody waits for it or has it.
        turn = self._turns.get(job_id)
        if turn is None:
            turn = self._turns[job_id] = asyncio.Lock()
        return turn

    def _append(self, job_id: UUID, directory: Path, offset: int, frames: bytes, durable: bool) -> int:
        with _explained(job_id):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _held(directory):
                base, size = self._open(job_id, directory)
                end = base + size
                if offset > end or offset < 0:
                    raise LogGap(job_id, offset, end)
                fresh = _unwritten(job_id, frames, end - offset)
                if end + len(fresh) > self._quota_bytes:
                    raise UserError(
                        f"The log of job {job_id} has reached its quota of {self._quota_bytes} bytes.",
                        hint="Write less, write to a file, or raise the quota.",
                        code="log_quota",
                    )
                if fresh:
                    if size >= self._segment_bytes:
                        base, size = end, 0
                    self._write(job_id, directory, base, size, fresh, durable)
                return end + len(fresh)

    def _write(self, job_id: UUID, directory: Path, base: int, size: int, data: memoryview, durable: bool) -> None:
        descriptor = os.open(_segment(directory, base), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], size + written)
            if durable:
                _sync(descriptor)
            if durable and size == 0:
                # With the first byte also the directories above, which may be as new as the file.
                for place in (directory, *directory.parents[: 3 if base == 0 else 0]):
                    _sync_directory(place)
        except OSError:
            # Also after a failed sync: the kernel may have dropped the pages, and a second sync would succeed.
            self._forget(job_id)
            with suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
        finally:
            os.close(descriptor)
        self._remember(job_id, base, size + len(data))

    def _delete(self, job_id: UUID, directory: Path) -> None:
        with _explained(job_id), suppress(FileNotFoundError):
            shutil.rmtree(directory)

    def _find_end(self, job_id: UUID, directory: Path) -> int:
        with _explained(job_id):
            if not directory.exists():
                return 0
            with _held(directory):
                base, size = self._open(job_id, directory)
            return base + size

    def _open(self, job_id: UUID, directory: Path) -> tuple[int, int]:
        """The last segment and its good size; what is behind that is cut off."""
        base, good = self._known.get(job_id) or (-1, 0)
        if base < 0 or not _segment(directory, base).exists() or _segment(directory, base + good).exists():
            bases = _bases(directory)
            if not bases:
                return 0, 0
            # Another process may have gone on to a new segment.
            if bases[-1] != base:
                base, good = bases[-1], 0
        with open(_segment(directory, base), "r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size < good:
                good = 0
            if size != good:
                file.seek(good)
                good += intact(memoryview(file.read()))
                file.truncate(good)
                # Found is not yet synced: whoever wrote it may have died in between.
                _sync(file.fileno())
                _sync_directory(directory)
        self._remember(job_id, base, good)
        return base, good

    def _read(self, job_id: UUID, directory: Path, offset: int, limit: int) -> bytes:
        with _explained(job_id):
            bases = _bases(directory)
            place = bisect_right(bases, offset) - 1
            if place < 0:
                return b""
            with open(_segment(directory, bases[place]), "rb") as file:
                start = offset - bases[place]
                if start >= file.seek(0, os.SEEK_END):
                    return b""
                for size in (limit, FRAME_BYTES + OVERHEAD):
                    file.seek(start)
                    data = file.read(max(size, OVERHEAD))
                    if whole := intact(memoryview(data)):
                        return data[:whole]
            if cut_short(data):
                return b""
            raise UserError(
                f"No frame of the log of job {job_id} begins at {offset}.",
                hint="Go on from where the last read ended, or begin at 0.",
                code="log_offset",
            )

    def _place(self, job_id: UUID, directory: Path, end: int, tail: int | None, since_us: int | None) -> Place:
        with _explained(job_id):
            bases = [base for base in _bases(directory) if base < end]
            segments = [Segment(_segment(directory, base), base, after) for base, after in pairwise((*bases, end))]
            floor = 0 if since_us is None else passed(segments, since_us)
            return Place(floor) if tail is None else last_lines(segments, tail, floor)

    def _remember(self, job_id: UUID, base: int, size: int) -> None:
        with self._guard:
            self._known.pop(job_id, None)
            self._known[job_id] = base, size
            while len(self._known) > KNOWN_LOGS:
                del self._known[next(iter(self._known))]

    def _forget(self, job_id: UUID) -> None:
        with self._guard:
            self._known.pop(job_id, None)


def _unwritten(job_id: UUID, frames: bytes, skip: int) -> memoryview:
    """What of the frames lies behind the end of the log."""
    view, at, boundary = memoryview(frames), 0, skip >= len(frames)
    while at < len(view):
        boundary = boundary or at == skip
        end = frame_end(view, at)
        if end is None:
            raise UserError(f"What was sent for job {job_id} has no whole frame at {at}.", code="log_frame")
        at = end
    if not boundary:
        raise Conflict(f"What was sent is not what the log of job {job_id} has.", code="log_differs")
    return view[skip:]


def _segment(directory: Path, base: int) -> Path:
    return directory / f"{base:020}.log"


def _bases(directory: Path) -> list[int]:
    try:
        return sorted(int(name[:-4]) for name in os.listdir(directory) if name.endswith(".log"))
    except FileNotFoundError:
        return []


@contextmanager
def _held(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _explained(job_id: UUID) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Unavailable(
                f"There is no space left on the disk for the log of job {job_id}.",
                hint="Free some space; what was not kept is sent again.",
                code="disk_full",
                retry_after_s=10.0,
            ) from error
        raise Unavailable(f"The log of job {job_id} cannot be used: {error}.", code="log_unavailable") from error


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
