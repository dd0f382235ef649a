"""A task's log on disk, as its runner writes it: how far it goes, a piece of it, its last lines.

Segments of whole frames, named by the offset of their first byte. The runner appends to the last one and may delete
those at the beginning; we only read, and no more than `shim/plain.py` allows.
"""

import os
from bisect import bisect_right
from pathlib import Path

from stoker.core.errors import Unavailable, UserError
from stoker.runner.limits import SEGMENT_BYTES
from stoker.runner.segment import bases_of
from stoker.shim import plain
from stoker.shim.limits import TAIL_BYTES, TAIL_LINES
from stoker.wire.frame import FRAME_BYTES, OVERHEAD, cut_short, decode, intact


class LogEnd:
    """How far a log goes. Two calls of `stat` in the usual case, however long the log is."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._base = -1
        self.end = 0

    def look(self) -> int:
        """Never less than before: what was read and deleted was there all the same."""
        size = self._size(self._base) if self._base >= 0 else None
        if size is None:
            self._base = max(_bases(self._directory), default=-1)
            size = self._size(self._base) if self._base >= 0 else None
        while size:
            following = self._size(self._base + size)
            if following is None:
                break
            self._base, size = self._base + size, following
        if size is not None:
            self.end = max(self.end, self._base + size)
        return self.end

    def _size(self, base: int) -> int | None:
        try:
            with plain.opened_directory(self._directory) as directory:
                return os.stat(_name(base), dir_fd=directory, follow_symlinks=False).st_size
        except FileNotFoundError:
            return None


def read(directory: Path, offset: int, limit: int) -> bytes:
    """Whole frames from `offset` on, about `limit` bytes and at least one frame; nothing when there is none yet."""
    bases = _bases(directory)
    place = bisect_right(bases, offset) - 1
    if place < 0:
        if bases:
            raise UserError(
                f"The log begins at {bases[0]}: what lies before was read and forgotten.",
                hint="Go on from where the last read ended.",
                code="log_offset",
            )
        return b""
    try:
        data = _frames(directory, bases[place], offset - bases[place], limit)
    except FileNotFoundError as error:
        raise Unavailable("That part of the log was forgotten just now.", code="log_offset") from error
    whole = intact(memoryview(data))
    if whole or cut_short(data) or _is_end(directory, bases[place:], offset):
        return data[:whole]
    raise UserError(
        f"No frame of the log begins at {offset}.", hint="Go on from where the last read ended.", code="log_offset"
    )


def _is_end(directory: Path, bases: list[int], offset: int) -> bool:
    """A host that lost its power may have left anything behind the last whole frame: there the log ends."""
    data = _whole(directory, bases[0])
    return len(bases) == 1 and intact(memoryview(data)) == offset - bases[0]


def _frames(directory: Path, base: int, start: int, limit: int) -> bytes:
    with plain.opened_directory(directory) as place, plain.opened(_name(base), place) as file:
        data = os.pread(file, max(limit, OVERHEAD), start)
        if data and not intact(memoryview(data)):
            # The first frame alone may be longer than what was asked for.
            data = os.pread(file, FRAME_BYTES + OVERHEAD, start)
    return data


def _whole(directory: Path, base: int) -> bytes:
    with plain.opened_directory(directory) as place, plain.opened(_name(base), place) as file:
        return os.pread(file, 2 * SEGMENT_BYTES, 0)


def tail(directory: Path) -> str:
    """The last lines of the log, for the message of a task that failed."""
    bases = _bases(directory)
    if not bases:
        return ""
    data = _whole(directory, bases[-1])
    text = bytearray()
    for frame in decode(data[: intact(memoryview(data))]):
        text += frame.data
        del text[:-TAIL_BYTES]
    return "\n".join(text.decode(errors="replace").splitlines()[-TAIL_LINES:])


def _bases(directory: Path) -> list[int]:
    try:
        with plain.opened_directory(directory) as place:
            return bases_of(place)
    except FileNotFoundError:
        return []


def _name(base: int) -> str:
    return f"{base:020}.log"
