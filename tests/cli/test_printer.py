"""A log is shown byte for byte."""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from stoker.cli.printer import Printer
from stoker.wire.frame import Frame, Stream

OUT, ERR = Stream.STDOUT, Stream.STDERR
AT = 1_777_636_800_000_000
STAMP = b"2026-05-01T14:00:00.000000+02:00 "

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


@pytest.mark.usefixtures("berlin")
def test_timestamps_stand_before_lines_and_nowhere_else(written: Written) -> None:
    frames = [
        Frame(OUT, AT, b"a"),
        Frame(ERR, AT, b"e\n"),
        Frame(OUT, AT + 1, b"b\nc\r50%\rd\n\n"),
        Frame(OUT, AT, b"z"),
    ]
    out, err = written(Printer(timestamps=True), frames)
    later = STAMP.replace(b"000000+", b"000001+")
    assert out == STAMP + b"ab\n" + later + b"c\r50%\rd\n" + later + b"\n" + STAMP + b"z"
    assert err == STAMP + b"e\n"
