"""Finds places in a log without reading all of it: where its last lines begin, and where its clock passed a moment.

**Lines.** Stdout and stderr have lines of their own and share one log; lines are numbered in the order in which they
began. Frames can be walked forwards only, so a segment is first divided into pieces, by headers alone. The pieces are
then looked at from the last one on, until enough lines are known to have begun; from there the frame of the first of
them is found forwards. The other stream may be in the middle of a line there, which belongs to what was not asked for.
So a place is an offset between frames, and how many bytes of each stream behind it are still to be skipped.

**Time.** The first frame of each segment is bisected, then one segment is walked. A host whose clock was set back
passed a moment more than once: one of these places is found, and all that is behind it counts as later, whatever its
frames say.

What is in memory is one piece; how much is read does not depend on the length of the log.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from stoker.core.limits import MOST_TAIL_BYTES, TAIL_MEMORY_BYTES
from stoker.wire.frame import FRAME_BYTES, OVERHEAD, Stream, side, spans, whole

PIECE_BYTES: Final = 4 * (FRAME_BYTES + OVERHEAD)


class Place(NamedTuple):
    """Where to begin to read."""

    offset: int
    skip: Mapping[Stream, int] = {}
    """How many bytes of stdout and of stderr from there on stand before what was asked for."""


class Segment(NamedTuple):
    """A file of frames, from one offset to another."""

    path: Path
    base: int
    end: int


def last_lines(segments: Sequence[Segment], lines: int, floor: int = 0) -> Place:
    """Where the last lines behind `floor` begin; a line that `floor` lies in the middle of begins there."""
    end = segments[-1].end if segments else floor
    if lines == 0 or floor >= end:
        return Place(end)
    begun, start, enough_at = 0, end, -1
    seen: dict[Stream, int] = {}
    """In which piece a stream was met first; whether a line begins there, the piece before it knows."""
    for start, piece in _backwards(segments, floor):
        for which, text in _by_side(piece).items():
            begun += text.count(b"\n") - (which not in seen and text.endswith(b"\n"))
            seen[which] = start
        if enough_at < 0 and begun >= lines:
            enough_at = start
        if enough_at >= 0 and (len(seen) == 1 or max(seen.values()) < enough_at):
            break
        if end - start >= MOST_TAIL_BYTES or enough_at - start >= TAIL_MEMORY_BYTES:
            break
    too_many = begun + len(seen) - lines
    return Place(start) if too_many <= 0 else _behind(segments, start, too_many)


def passed(segments: Sequence[Segment], time_us: int) -> int:
    """The offset of the first frame that is not older, or the end."""
    low, high = -1, len(segments)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _first_time(segments[middle]) < time_us else (low, middle)
    if low < 0:
        return segments[0].base if segments else 0
    for at, piece in _pieces(segments[low], 0):
        for span in spans(memoryview(piece)):
            if span.time_us >= time_us:
                return at + span.at
    return segments[low].end


def _first_time(segment: Segment) -> int:
    for _, piece in _pieces(segment, 0):
        return next(spans(memoryview(piece))).time_us
    return 0


def _behind(segments: Sequence[Segment], start: int, lines: int) -> Place:
    """Where so many lines from `start` on have begun, and the next one does."""
    begun, within = 0, set[Stream]()
    frames = _frames(segments, start)
    for at, which, data in frames:
        fresh = which not in within
        inside = data.count(b"\n") - data.endswith(b"\n")
        if begun + fresh + inside > lines:
            skip = {which: _after_newlines(data, lines + 1 - begun - fresh)}
            for other in within - {which}:
                skip[other] = _rest_of_line(frames, other)
            return Place(at, {each: size for each, size in skip.items() if size})
        begun += fresh + inside
        if data.endswith(b"\n"):
            within.discard(which)
        else:
            within.add(which)
    return Place(start)


def _after_newlines(data: bytes, number: int) -> int:
    at = 0
    for _ in range(number):
        at = data.index(b"\n", at) + 1
    return at


def _rest_of_line(frames: Iterator[tuple[int, Stream, bytes]], which: Stream) -> int:
    """How many bytes the line that a stream is in the middle of has still; what is not written yet is news."""
    size = 0
    for _, whose, data in frames:
        if whose is which:
            newline = data.find(b"\n")
            if newline >= 0:
                return size + newline + 1
            size += len(data)
    return size


def _frames(segments: Sequence[Segment], start: int) -> Iterator[tuple[int, Stream, bytes]]:
    for segment in segments:
        if segment.end > start:
            for at, piece in _pieces(segment, start):
                view = memoryview(piece)
                for span in spans(view):
                    yield at + span.at, side(span.stream), piece[span.data_at : span.end]


def _backwards(segments: Sequence[Segment], floor: int) -> Iterator[tuple[int, bytes]]:
    for segment in reversed(segments):
        if segment.end <= floor:
            return
        for at in reversed([at for at, _ in _pieces(segment, floor)]):
            yield next(_pieces(segment, at))


def _by_side(piece: bytes) -> dict[Stream, bytes]:
    texts: dict[Stream, list[memoryview]] = {}
    view = memoryview(piece)
    for span in spans(view):
        texts.setdefault(side(span.stream), []).append(view[span.data_at : span.end])
    return {which: b"".join(parts) for which, parts in texts.items()}


def _pieces(segment: Segment, start: int) -> Iterator[tuple[int, bytes]]:
    """Whole frames from `start` on, at least one at a time, each time with its offset."""
    at = max(start, segment.base)
    descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while at < segment.end:
            piece = os.pread(descriptor, min(PIECE_BYTES, segment.end - at), at - segment.base)
            size = whole(memoryview(piece))
            if not size:
                return
            yield at, piece[:size]
            at += size
    finally:
        os.close(descriptor)
