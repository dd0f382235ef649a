"""A job's log for programs: one JSON object for each line that it wrote.

What a frame holds is an accident of buffers, so lines are put together first, each stream for itself, and printed as
they end. Whoever joins the texts of a stream, with a newline behind each that is not partial, has its bytes again.
"""

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any, Final

from stoker.cli.moment import utc
from stoker.cli.printer import STDOUT, split, write_all
from stoker.wire.frame import Frame, Stream

MOST_LINE_BYTES: Final = 1024 * 1024
"""A longer line comes in parts."""


class _Line:
    """One that has begun; time and offset are those of the frame with its first byte."""

    def __init__(self, frame: Frame, offset: int) -> None:
        self._stream, self._time_us, self._offset = frame.stream, frame.time_us, offset
        self.data = bytearray()

    def told(self, data: bytes, *, partial: bool) -> dict[str, Any]:
        told: dict[str, Any] = {"time": utc(self._time_us), "stream": _name(self._stream), "offset": self._offset}
        try:
            told["text"] = data.decode()
        except UnicodeDecodeError:
            told |= {"text": data.decode(errors="replace"), "base64": b64encode(data).decode()}
        return told | {"partial": True} if partial else told


class JsonLines:
    """`write` takes frames with their offsets as they come, `flush` ends what has no end."""

    def __init__(self) -> None:
        self._open: dict[int, _Line] = {}

    def write(self, frames: Iterable[tuple[int, Frame]]) -> None:
        told: list[dict[str, Any]] = []
        for offset, frame in frames:
            for part in split(frame.data):
                line = self._open.setdefault(frame.stream, _Line(frame, offset))
                line.data += part
                if part.endswith(b"\n"):
                    del self._open[frame.stream]
                    told.append(line.told(bytes(line.data[:-1]), partial=False))
                elif len(line.data) >= MOST_LINE_BYTES:
                    end = _last_character(line.data)
                    told.append(line.told(bytes(line.data[:end]), partial=True))
                    rest = self._open[frame.stream] = _Line(frame, offset)
                    rest.data += line.data[end:]
        _print(told)

    def flush(self) -> None:
        _print([line.told(bytes(line.data), partial=True) for line in self._open.values() if line.data])
        self._open.clear()


def _print(told: list[dict[str, Any]]) -> None:
    write_all(STDOUT, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in told).encode())


def _name(stream: int) -> str:
    try:
        return Stream(stream).name.lower()
    except ValueError:
        return str(stream)


def _last_character(data: bytearray) -> int:
    """Where a character of UTF-8 begins that is not whole yet, or the end."""
    for back in range(1, 4):
        byte = data[-back]
        if byte >= 0xC0:
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if size > back else len(data)
        if byte < 0x80:
            break
    return len(data)
