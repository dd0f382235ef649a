"""A log is shown byte for byte, and its last lines are the last lines."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli import printer
from stoker.cli.printer import Printer, Tail, later
from stoker.wire.frame import Frame, Stream

OUT, ERR = Stream.STDOUT, Stream.STDERR
AT = 1_777_636_800_000_000
STAMP = b"2026-05-01T12:00:00.000000Z "

Written = Callable[[Printer, Iterable[Frame]], tuple[bytes, bytes]]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """What reaches stdout and stderr."""
    paths = tmp_path / "out", tmp_path / "err"
    descriptors = [os.open(path, os.O_CREAT | os.O_WRONLY) for path in paths]
    real = os.write
    monkeypatch.setattr("stoker.cli.printer.os.write", lambda to, data: real(descriptors[to - 1], bytes(data[:5])))

    def write(to: Printer, frames: Iterable[Frame]) -> tuple[bytes, bytes]:
        to.write(frames)
        return paths[0].read_bytes(), paths[1].read_bytes()

    return write


def test_streams_are_told_apart_and_bytes_are_kept(written: Written) -> None:
    frames = [Frame(OUT, AT, b"\x00\xff\r\n"), Frame(ERR, AT, b"oh\n"), Frame(OUT, AT, b"no end"), Frame(9, AT, b"?")]
    assert written(Printer(), frames) == (b"\x00\xff\r\nno end?", b"oh\n")


def test_timestamps_stand_before_lines_and_nowhere_else(written: Written) -> None:
    frames = [
        Frame(OUT, AT, b"a"),
        Frame(ERR, AT, b"e\n"),
        Frame(OUT, AT + 1, b"b\nc\r50%\rd\n\n"),
        Frame(OUT, AT, b"z"),
    ]
    out, err = written(Printer(timestamps=True), frames)
    later = STAMP.replace(b"000000Z", b"000001Z")
    assert out == STAMP + b"ab\n" + later + b"c\r50%\rd\n" + later + b"\n" + STAMP + b"z"
    assert err == STAMP + b"e\n"


def tail(lines: int, *frames: Frame) -> list[tuple[int, bytes]]:
    kept = Tail(lines)
    for frame in frames:
        kept.write([frame])
    return [(frame.stream, frame.data) for frame in kept.kept()]


def test_the_last_lines_are_kept() -> None:
    assert tail(2, Frame(OUT, AT, b"a\nb\nc\n")) == [(OUT, b"b\n"), (OUT, b"c\n")]
    assert tail(2, Frame(OUT, AT, b"a\nb\nc")) == [(OUT, b"b\n"), (OUT, b"c")]
    assert tail(1, Frame(OUT, AT, b"a\nb"), Frame(OUT, AT, b"b\n")) == [(OUT, b"b"), (OUT, b"b\n")]
    assert tail(0, Frame(OUT, AT, b"a\n")) == []
    assert tail(9, Frame(OUT, AT, b"a\n")) == [(OUT, b"a\n")]


def test_the_end_of_a_line_whose_beginning_is_gone_is_gone_too() -> None:
    frames = [Frame(OUT, AT, b"begin"), Frame(ERR, AT, b"e1\ne2\n"), Frame(OUT, AT, b"end\n"), Frame(ERR, AT, b"e3\n")]
    assert tail(2, *frames) == [(ERR, b"e2\n"), (ERR, b"e3\n")]


def test_one_endless_line_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printer, "TAIL_BYTES", 100)
    kept = tail(5, *(Frame(OUT, AT, b"x" * 30) for _ in range(50)))
    assert len(kept) == 3


def test_since_leaves_out_what_came_before() -> None:
    frames = [Frame(OUT, AT, b"old"), Frame(OUT, AT + 5, b"new")]
    assert [frame.data for frame in later(frames, AT + 1)] == [b"new"]


@given(
    st.lists(st.tuples(st.sampled_from([OUT, ERR]), st.text("ab\n", min_size=1, max_size=12)), max_size=12),
    st.integers(0, 6),
)
def test_the_tail_is_the_end_of_all_lines(said: list[tuple[int, str]], lines: int) -> None:
    """Compared with the plain way: number every line by when it began, and keep the last ones."""
    began, opened = 0, dict[int, int]()
    pieces: list[tuple[int, int, bytes]] = []
    for stream, text in said:
        for piece in text.splitlines(keepends=True):
            if stream not in opened:
                began += 1
                opened[stream] = began
            pieces.append((opened[stream], stream, piece.encode()))
            if piece.endswith("\n"):
                del opened[stream]
    expected = {
        stream: b"".join(piece for line, to, piece in pieces if to == stream and line > began - lines)
        for stream in (OUT, ERR)
    }
    kept = tail(lines, *(Frame(stream, AT, text.encode()) for stream, text in said))
    assert {stream: b"".join(data for to, data in kept if to == stream) for stream in (OUT, ERR)} == expected
