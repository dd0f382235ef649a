"""The segments of a log on disk: what a crash leaves, what is read while it is written, what is forgotten."""

import errno
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import Conflict, UserError
from stoker.runner.segment import Segments
from stoker.store.log import LogStore
from stoker.wire.frame import Frame, Stream, decode, encode, intact, whole


def frame(data: bytes) -> bytes:
    return encode(Frame(Stream.STDOUT, 1, data))


def everything(log: Segments, offset: int = 0, limit: int = 100) -> bytes:
    found = b""
    while piece := log.read(offset + len(found), limit):
        found += piece
    return found


def test_a_log_is_read_as_it_was_written_across_segments(tmp_path: Path) -> None:
    log = Segments(tmp_path / "log", segment_bytes=100)
    wanted = b""
    for number in range(50):
        log.append([frame(b"%d" % number)])
        wanted += frame(b"%d" % number)
    assert everything(log) == wanted
    assert len(list((tmp_path / "log").iterdir())) > 5
    assert log.end == len(wanted)


def test_what_a_crash_cut_off_is_cut_away_and_the_log_goes_on(tmp_path: Path) -> None:
    first = Segments(tmp_path / "log")
    first.append([frame(b"whole")])
    with open(tmp_path / "log" / f"{0:020}.log", "ab") as file:
        file.write(frame(b"half")[:-1])
    again = Segments(tmp_path / "log")
    assert again.end == len(frame(b"whole"))
    again.append([frame(b"next")])
    assert [found.data for found in decode(everything(again))] == [b"whole", b"next"]


def test_a_failed_write_is_repeated_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Segments(tmp_path / "log")
    log.append([frame(b"before")])
    real, room = os.pwrite, [10]

    def full(descriptor: int, data: Any, at: int) -> int:
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data[: room.pop()], at)

    def part(descriptor: int, buffers: list[bytes], at: int) -> int:
        return full(descriptor, b"".join(buffers), at)

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", full)
        broken.setattr(os, "pwritev", part)
        with pytest.raises(OSError, match="No space"):
            log.append([frame(b"a" * 100), frame(b"b")])
    assert [found.data for found in decode(everything(log))] == [b"before"]
    log.append([frame(b"a" * 100), frame(b"b")])
    assert [found.data for found in decode(everything(log))] == [b"before", b"a" * 100, b"b"]


def test_what_is_forgotten_is_refused_and_the_rest_stays(tmp_path: Path) -> None:
    log = Segments(tmp_path / "log", segment_bytes=50)
    one = len(frame(b"0"))
    for number in range(10):
        log.append([frame(b"%d" % number)])
    log.forget(one * 7)
    with pytest.raises(Conflict, match="forgotten"):
        log.read(0, 100)
    assert [found.data for found in decode(everything(log, one * 7))] == [b"7", b"8", b"9"]
    log.forget(log.end)
    assert log.read(log.end, 100) == b""
    log.append([frame(b"more")])
    assert everything(log, one * 10) == frame(b"more")
    log.sync()


def test_an_offset_within_a_frame_or_behind_the_end_is_refused(tmp_path: Path) -> None:
    log = Segments(tmp_path / "log")
    log.append([frame(b"x" * 1000)])
    with pytest.raises(UserError, match="No frame begins"):
        log.read(3, 100)
    with pytest.raises(Conflict, match="ends at"):
        log.read(log.end + 1, 100)


@given(st.lists(st.binary(min_size=1, max_size=50)), st.integers(0, 2000))
def test_headers_alone_find_the_same_whole_frames(pieces: list[bytes], cut: int) -> None:
    data = b"".join(map(frame, pieces))[:cut]
    assert whole(memoryview(data)) == intact(memoryview(data))


async def test_the_server_keeps_what_the_runner_wrote(tmp_path: Path) -> None:
    """One format: what is read here is appended there as it is."""
    log, store, job = Segments(tmp_path / "log", segment_bytes=100), LogStore(tmp_path / "store"), uuid4()
    for number in range(30):
        log.append([frame(b"line %d\n" % number)])
    offset = 0
    while piece := log.read(offset, 200):
        offset = await store.append(job, offset, piece)
    assert offset == log.end
    assert b"".join(found.data for found in decode(await store.read(job, 0))) == b"".join(
        b"line %d\n" % number for number in range(30)
    )
