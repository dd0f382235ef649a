"""A job's log on its way: frames of (stream, time, length, checksum, raw bytes), one behind the other.

The runner makes them, the server keeps them, and nobody rewrites one. An offset is a byte position in the framed
stream and always lies between two frames, so what one side has is simply how far it got.
"""

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from stoker.core.errors import UserError

FRAME_BYTES: Final = 64 * 1024
"""The most that one frame carries."""
_HEADER: Final = struct.Struct(">BQI")
_CHECKSUM: Final = struct.Struct(">I")
OVERHEAD: Final = _HEADER.size + _CHECKSUM.size


class Stream(IntEnum):
    """Where bytes came from. Zero is no stream, so that a hole in a file is no frame."""

    STDOUT = 1
    STDERR = 2
    RUNNER = 3


def side(stream: int) -> Stream:
    """Which of a reader's two outputs it belongs to; what only a newer runner knows goes to stdout and is not lost."""
    return Stream.STDERR if stream == Stream.STDERR else Stream.STDOUT


@dataclass(frozen=True)
class Frame:
    """Bytes of a job in the order they came; `stream` may be a number that only a newer runner knows."""

    stream: int
    time_us: int
    data: bytes


class Piece(NamedTuple):
    """Whole frames of a log, as one answer brings them."""

    frames: bytes
    next_offset: int
    complete: bool
    """The log ends at `next_offset` and will not grow any more."""


def encode(frame: Frame) -> bytes:
    """The frame as it is sent and kept."""
    return head(frame) + frame.data


def head(frame: Frame) -> bytes:
    """What stands before the data: whoever writes much sends both without putting them together first."""
    if not 0 < len(frame.data) <= FRAME_BYTES:
        raise UserError(f"A frame has 1 to {FRAME_BYTES} bytes, not {len(frame.data)}.")
    header = _HEADER.pack(frame.stream, frame.time_us, len(frame.data))
    return header + _CHECKSUM.pack(zlib.crc32(frame.data, zlib.crc32(header)))


def decode(frames: bytes) -> Iterator[Frame]:
    """Whole frames, one behind the other."""
    return (frame for _, frame in located(frames, 0))


def located(frames: bytes, offset: int) -> Iterator[tuple[int, Frame]]:
    """Each with its own offset, where the first one's is known."""
    view, at = memoryview(frames), 0
    while at < len(view):
        end = frame_end(view, at)
        if end is None:
            raise UserError(f"The bytes at {at} are no whole frame.", code="log_frame")
        stream, time_us, _ = _HEADER.unpack_from(view, at)
        yield offset + at, Frame(stream, time_us, bytes(view[at + OVERHEAD : end]))
        at = end


def frame_end(view: memoryview, at: int) -> int | None:
    """Where the frame at `at` ends, or None when it is cut short or damaged."""
    if at + OVERHEAD > len(view):
        return None
    stream, _, length = _HEADER.unpack_from(view, at)
    end = at + OVERHEAD + length
    if stream == 0 or not 0 < length <= FRAME_BYTES or end > len(view):
        return None
    checksum = zlib.crc32(view[at + OVERHEAD : end], zlib.crc32(view[at : at + _HEADER.size]))
    return end if _CHECKSUM.unpack_from(view, at + _HEADER.size) == (checksum,) else None


def intact(view: memoryview) -> int:
    """How many bytes from the beginning are whole frames."""
    at = 0
    while (end := frame_end(view, at)) is not None:
        at = end
    return at


def whole(view: memoryview) -> int:
    """Like `intact`, by the headers alone: for frames that this process wrote, whose reader checks them anyway."""
    at, size = 0, len(view)
    while at + OVERHEAD <= size:
        end = at + OVERHEAD + int(_HEADER.unpack_from(view, at)[2])
        if end > size:
            break
        at = end
    return at


class Span(NamedTuple):
    """Where a frame stands among others, and what its header says."""

    at: int
    data_at: int
    end: int
    stream: int
    time_us: int


def spans(view: memoryview) -> Iterator[Span]:
    """Of whole frames, by their headers alone, like `whole`."""
    at, size = 0, len(view)
    while at + OVERHEAD <= size:
        stream, time_us, length = _HEADER.unpack_from(view, at)
        end = at + OVERHEAD + length
        if end > size:
            return
        yield Span(at, at + OVERHEAD, end, stream, time_us)
        at = end


def cut_short(data: bytes) -> bool:
    """Whether this may be the beginning of a frame that is being written now."""
    if len(data) < _HEADER.size:
        return True
    stream, _, length = _HEADER.unpack_from(data)
    return bool(stream) and 0 < length <= FRAME_BYTES and OVERHEAD + length > len(data)
