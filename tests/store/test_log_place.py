"""The last lines of a log and what was written since a time, found without reading all of it."""

import asyncio
import os
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.store import log_place
from stoker.store.log import LogStore
from stoker.store.log_place import Place
from stoker.wire.frame import Frame, Stream, decode, encode, side

JOB = UUID("018f5b2e-7d3a-7cc1-8a10-3e5f6a7b8c9d")
OUT, ERR = Stream.STDOUT, Stream.STDERR
AT = 1_777_636_800_000_000


async def kept(root: Path, *frames: Frame, segment_bytes: int = 200) -> LogStore:
    store = LogStore(root, segment_bytes=segment_bytes)
    end = 0
    for frame in frames:
        end = await store.append(JOB, end, encode(frame), durable=False)
    return store


async def shown(store: LogStore, place: Place) -> dict[Stream, bytes]:
    """What a reader has of both streams who begins there and skips what is to be skipped."""
    found, offset = {OUT: b"", ERR: b""}, place.offset
    while piece := await store.read(JOB, offset):
        offset += len(piece)
        for frame in decode(piece):
            found[side(frame.stream)] += frame.data
    return {which: text[place.skip.get(which, 0) :] for which, text in found.items()}


async def tail(root: Path, lines: int, *frames: Frame) -> tuple[bytes, bytes]:
    store = await kept(root, *frames)
    found = await shown(store, await store.place(JOB, tail=lines))
    return found[OUT], found[ERR]


@pytest.mark.parametrize(
    ("lines", "texts", "expected"),
    [
        (2, [b"a\nb\nc\n"], b"b\nc\n"),
        (2, [b"a\nb\nc"], b"b\nc"),
        (1, [b"a\nb", b"b\n"], b"bb\n"),
        (0, [b"a\n"], b""),
        (9, [b"a\n"], b"a\n"),
        (2, [b"a\n", b"\n", b"\n"], b"\n\n"),
        (1, [], b""),
    ],
)
async def test_the_last_lines_are_found(tmp_path: Path, lines: int, texts: list[bytes], expected: bytes) -> None:
    assert await tail(tmp_path, lines, *(Frame(OUT, AT, text) for text in texts)) == (expected, b"")


async def test_the_end_of_a_line_whose_beginning_is_gone_is_gone_too(tmp_path: Path) -> None:
    frames = [Frame(OUT, AT, b"begin"), Frame(ERR, AT, b"e1\ne2\n"), Frame(OUT, AT, b"end\n"), Frame(ERR, AT, b"e3\n")]
    assert await tail(tmp_path, 2, *frames) == (b"", b"e2\ne3\n")


async def test_a_line_that_goes_on_is_skipped_only_as_far_as_it_was_written(tmp_path: Path) -> None:
    """A progress bar on stderr never ends its line; who follows the log wants to see it move."""
    store = await kept(tmp_path, Frame(ERR, AT, b"10%\r"), Frame(OUT, AT, b"a\nb\n"), Frame(ERR, AT, b"20%\r"))
    place = await store.place(JOB, tail=1)
    await store.append(JOB, await store.end(JOB), encode(Frame(ERR, AT, b"30%\r")))
    assert await shown(store, place) == {OUT: b"b\n", ERR: b"30%\r"}


async def test_since_begins_at_the_first_frame_that_is_not_older(tmp_path: Path) -> None:
    frames = [Frame(OUT, AT + number, b"%d\n" % number) for number in range(200)]
    store = await kept(tmp_path, *frames)
    for number in (0, 1, 57, 58, 199):
        found = await shown(store, await store.place(JOB, since_us=AT + number))
        assert found[OUT] == b"".join(b"%d\n" % each for each in range(number, 200))
    assert await store.place(JOB, since_us=AT + 200) == Place(await store.end(JOB))
    assert await store.place(JOB, since_us=0) == Place(0)
    both = await store.place(JOB, since_us=AT + 190, tail=3)
    assert (await shown(store, both))[OUT] == b"197\n198\n199\n"
    fewer = await store.place(JOB, since_us=AT + 198, tail=50)
    assert (await shown(store, fewer))[OUT] == b"198\n199\n"


async def test_after_a_clock_was_set_back_nothing_behind_the_place_is_left_out(tmp_path: Path) -> None:
    """An hour is passed twice; one of the two times is found, and from there on all is shown."""
    times = [*range(100), *range(50, 150)]
    store = await kept(tmp_path, *(Frame(OUT, AT + time, b"%d\n" % time) for time in times))
    found = await shown(store, await store.place(JOB, since_us=AT + 75))
    whole = b"".join(b"%d\n" % time for time in times)
    assert whole.endswith(found[OUT])
    assert len(found[OUT].splitlines()) in (200 - 75, 200 - 125)


async def test_a_job_without_a_log_has_its_place_at_the_beginning(tmp_path: Path) -> None:
    store = LogStore(tmp_path)
    assert await store.place(JOB, tail=5, since_us=AT) == Place(0)


async def test_of_one_endless_line_the_end_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_place, "MOST_TAIL_BYTES", 1000)
    monkeypatch.setattr(log_place, "PIECE_BYTES", 100)
    found, _ = await tail(tmp_path, 5, *(Frame(OUT, AT, b"x" * 30) for _ in range(500)))
    assert 500 <= len(found) <= 1100


async def test_how_much_is_read_does_not_depend_on_the_length_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = [0]
    real = os.pread

    def counted(descriptor: int, size: int, at: int) -> bytes:
        data = real(descriptor, size, at)
        read[0] += len(data)
        return data

    monkeypatch.setattr("stoker.store.log_place.os.pread", counted)
    monkeypatch.setattr(log_place, "PIECE_BYTES", 1000)
    monkeypatch.setattr(log_place, "TAIL_MEMORY_BYTES", 2000)
    used = []
    for copies in (100, 2000):
        frames = [Frame(ERR, AT, b"no end")] + [Frame(OUT, AT + number, b"x" * 40 + b"\n") for number in range(copies)]
        root = tmp_path / str(copies)
        store = await kept(root, *frames, Frame(ERR, AT + copies, b"late"), segment_bytes=3000)
        read[0] = 0
        await store.place(JOB, tail=3, since_us=AT + copies // 2)
        used.append(read[0])
    assert used[1] < used[0] + 6 * 1000, used


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([OUT, ERR, 3]), st.text("ab\n", min_size=1, max_size=12)), max_size=20),
    st.integers(0, 6),
    st.sampled_from([30, 60, 1000]),
    st.integers(0, 20),
)
def test_the_tail_is_the_end_of_all_lines(
    tmp_path_factory: pytest.TempPathFactory, said: list[tuple[int, str]], lines: int, piece: int, since: int
) -> None:
    """Compared with the plain way: number every line by when it began, and keep the last ones."""
    since = min(since, len(said))
    began, opened = 0, dict[int, int]()
    pieces: list[tuple[int, Stream, bytes]] = []
    for stream, text in said[since:]:
        which = side(stream)
        for part in text.splitlines(keepends=True):
            if which not in opened:
                began += 1
                opened[which] = began
            pieces.append((opened[which], which, part.encode()))
            if part.endswith("\n"):
                del opened[which]
    expected = {
        which: b"".join(part for line, to, part in pieces if to == which and line > began - lines)
        for which in (OUT, ERR)
    }

    async def story() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log_place, "PIECE_BYTES", piece)
            frames = [Frame(stream, AT + number, text.encode()) for number, (stream, text) in enumerate(said)]
            store = await kept(tmp_path_factory.mktemp("log"), *frames, segment_bytes=100)
            place = await store.place(JOB, tail=lines, since_us=AT + since)
            assert await shown(store, place) == expected

    asyncio.run(story())
