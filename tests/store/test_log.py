"""Logs on files: nothing lost, nothing twice, whatever breaks in between."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import Conflict, StokerError, Unavailable, UserError
from stoker.store import log
from stoker.store.log import LogGap, LogStore
from stoker.wire.frame import FRAME_BYTES, Frame, Stream, decode, encode

JOB = UUID("018f5b2e-7d3a-7cc1-8a10-3e5f6a7b8c9d")


def frame(text: bytes, stream: int = Stream.STDOUT) -> bytes:
    return encode(Frame(stream, 1_700_000_000_000_000, text))


async def everything(store: LogStore, job: UUID = JOB) -> bytes:
    found = b""
    while piece := await store.read(job, len(found), 4096):
        found += piece
    return found


def last_segment(root: Path, job: UUID = JOB) -> Path:
    return max((root / job.hex[-2:] / str(job)).glob("*.log"))


async def test_what_was_written_is_read_byte_for_byte(tmp_path: Path) -> None:
    """Binary output, both streams, kept in the order in which it came."""
    store = LogStore(tmp_path)
    frames = [Frame(Stream.STDOUT, 1, bytes(range(256))), Frame(Stream.STDERR, 2, b"\xff\x00\r\n"), Frame(77, 3, b"x")]
    end = await store.append(JOB, 0, b"".join(map(encode, frames)))
    assert list(decode(await store.read(JOB, 0))) == frames
    assert await store.end(JOB) == end
    assert await store.read(JOB, end) == b""


async def test_a_job_that_wrote_nothing_has_an_empty_log(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    assert (await store.end(JOB), await store.read(JOB, 0)) == (0, b"")
    assert os.listdir(tmp_path) == []


async def test_the_same_append_twice_is_written_once(tmp_path: Path) -> None:
    """The answer got lost, so the runner sends again, this time with more behind it."""
    store, first, second = LogStore(tmp_path), frame(b"one"), frame(b"two")
    assert await store.append(JOB, 0, first) == len(first)
    assert await store.append(JOB, 0, first) == len(first)
    assert await store.append(JOB, 0, first + second) == len(first + second)
    assert await store.append(JOB, 0, first) == len(first + second)
    assert await everything(store) == first + second


async def test_a_gap_is_refused_and_says_where_to_go_on(tmp_path: Path) -> None:
    store, first = LogStore(tmp_path), frame(b"one")
    await store.append(JOB, 0, first)
    with pytest.raises(LogGap) as refused:
        await store.append(JOB, len(first) + 5, frame(b"three"))
    assert refused.value.end == len(first)
    assert await everything(store) == first


async def test_bytes_that_are_no_frames_are_refused(tmp_path: Path) -> None:
    store, good = LogStore(tmp_path), frame(b"good")
    damaged = good[:-1] + b"!"
    for wrong in (b"text", good[:-1], damaged, good + damaged, bytes(64)):
        with pytest.raises(UserError):
            await store.append(JOB, 0, wrong)
    assert await store.end(JOB) == 0


async def test_another_stream_at_the_same_offset_is_noticed(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    await store.append(JOB, 0, frame(b"first life"))
    with pytest.raises(Conflict):
        await store.append(JOB, 0, frame(b"a second, different life") + frame(b"more"))


async def test_reads_are_bounded_and_begin_at_frames(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    big = frame(os.urandom(FRAME_BYTES))
    await store.append(JOB, 0, frame(b"a") + big)
    first = await store.read(JOB, 0, 100)
    assert first == frame(b"a")
    assert await store.read(JOB, len(first), 1) == big
    with pytest.raises(UserError) as refused:
        await store.read(JOB, 3)
    assert refused.value.code == "log_offset"
    assert await store.read(JOB, 10**9) == b""


async def test_a_long_log_is_kept_in_segments(tmp_path: Path) -> None:
    store, expected = LogStore(tmp_path, segment_bytes=1000), b""
    for number in range(200):
        line = frame(b"line %d" % number)
        await store.append(JOB, len(expected), line)
        expected += line
    assert len(list(last_segment(tmp_path).parent.glob("*.log"))) > 4
    assert await everything(store) == expected
    assert await everything(LogStore(tmp_path, segment_bytes=1000)) == expected


async def test_concurrent_appends_take_turns(tmp_path: Path) -> None:
    """Two connections to one runner deliver the same log at once, and so does a second server process."""
    lines = [frame(b"line %d" % number) for number in range(40)]
    stores = [LogStore(tmp_path), LogStore(tmp_path)]

    async def deliver(store: LogStore) -> None:
        end = 0
        for number in range(len(lines)):
            whole = b"".join(lines[: number + 1])
            end = await store.append(JOB, 0, whole)
            assert end >= len(whole)

    await asyncio.gather(*(deliver(store) for store in stores * 2))
    assert await everything(stores[0]) == b"".join(lines)


@pytest.mark.parametrize("left_behind", [frame(b"torn")[:-2], frame(b"torn")[:5], bytes(4096), b"\x01garbage" * 9])
async def test_a_torn_tail_is_cut(tmp_path: Path, left_behind: bytes) -> None:
    """The machine lost power in the middle of an append; the runner still has what was not acknowledged."""
    whole = frame(b"one") + frame(b"two")
    await LogStore(tmp_path).append(JOB, 0, whole)
    with last_segment(tmp_path).open("ab") as file:
        file.write(left_behind)
    restarted = LogStore(tmp_path)
    assert await everything(restarted) == whole
    assert await restarted.append(JOB, len(whole), frame(b"torn")) == len(whole + frame(b"torn"))
    assert await everything(restarted) == whole + frame(b"torn")


async def test_a_quota_ends_the_log_and_not_the_store(tmp_path: Path) -> None:
    store, other = LogStore(tmp_path, quota_bytes=200), uuid4()
    line = frame(b"x" * 80)
    await store.append(JOB, 0, line)
    with pytest.raises(UserError) as refused:
        await store.append(JOB, len(line), line + line)
    assert refused.value.code == "log_quota"
    assert await everything(store) == line
    await store.append(other, 0, line)


async def test_a_full_disk_leaves_the_log_whole(small_disk: Callable[[int], Path]) -> None:
    """The disk fills up while a job writes; after somebody made room the same append succeeds."""
    disk = small_disk(3)
    store, expected = LogStore(disk / "logs"), b""
    piece = b"".join(frame(os.urandom(50_000)) for _ in range(10))
    ballast = disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    with pytest.raises(Unavailable) as refused:
        for _ in range(10):
            await store.append(JOB, len(expected), piece)
            expected += piece
    assert refused.value.code == "disk_full" and "no space left" in refused.value.sentence
    assert expected and await everything(store) == expected
    assert await everything(LogStore(disk / "logs")) == expected
    ballast.unlink()
    await store.append(JOB, len(expected), piece)
    assert await everything(store) == expected + piece


async def test_deleted_is_gone_and_may_be_deleted_again(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    await store.append(JOB, 0, frame(b"one"))
    await store.delete(JOB)
    await store.delete(JOB)
    assert await store.end(JOB) == 0
    with pytest.raises(LogGap):
        await store.append(JOB, len(frame(b"one")), frame(b"two"))


async def test_only_uuids_become_paths(tmp_path: Path) -> None:
    store = LogStore(tmp_path / "logs")
    with pytest.raises(UserError):
        await store.append("../../etc", 0, frame(b"x"))  # type: ignore[arg-type]


async def test_memory_does_not_grow_with_the_number_of_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "KNOWN_LOGS", 3)
    store = LogStore(tmp_path)
    jobs = [uuid4() for _ in range(6)]
    for job in jobs:
        await store.append(job, 0, frame(b"one"))
    assert len(store._known) == 3
    assert [await store.append(job, 0, frame(b"one") + frame(b"two")) for job in jobs] == [len(frame(b"one")) * 2] * 6


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_of_retries_and_crashes_keeps_the_stream(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A runner that resends from anywhere, a store killed anywhere: the log is always a prefix of the stream."""
    root = tmp_path_factory.mktemp("log")
    lines = [frame(bytes([65 + number % 26]) * data.draw(st.integers(1, 60))) for number in range(12)]
    starts = [sum(map(len, lines[:number])) for number in range(len(lines) + 1)]
    stream = b"".join(lines)

    async def story() -> None:
        store, kept = LogStore(root, segment_bytes=150), 0
        for _ in range(data.draw(st.integers(1, 12))):
            first = data.draw(st.integers(0, len(lines) - 1))
            last = data.draw(st.integers(first, len(lines)))
            try:
                end = await store.append(JOB, starts[first], stream[starts[first] : starts[last]])
                assert end >= max(kept, starts[last])
            except StokerError as error:
                assert isinstance(error, LogGap) and kept <= error.end < starts[first]
                end = error.end
            kept = end
            if kept and data.draw(st.booleans()):
                with last_segment(root).open("ab") as file:
                    file.write(stream[kept : kept + data.draw(st.integers(0, 150))])
                store = LogStore(root, segment_bytes=150)
        found = await everything(store)
        assert len(found) >= kept and stream.startswith(found) and len(found) in starts

    asyncio.run(story())
