"""What an answer with a piece of a log says beside its frames, so that a reader can go on exactly there."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from stoker.core.errors import Broken
from stoker.wire.frame import Frame, Stream, side

GONE = "gone"
"""The name of the last event of a log that was deleted while somebody followed it."""


class LogHeader(StrEnum):
    """In addition to those of the agents' answers."""

    START = "Stoker-Log-Start"
    SKIP = "Stoker-Log-Skip"
    RUN = "Stoker-Log-Run"
    SUBMISSION = "Stoker-Log-Submission"


Skip = Mapping[Stream, int]
"""How many bytes of stdout and of stderr, from an offset on, stand before what was asked for."""


def skip_text(skip: Skip) -> str:
    """`stdout=12, stderr=5`; empty for nothing."""
    return ", ".join(f"{Stream(stream).name.lower()}={size}" for stream, size in sorted(skip.items()) if size)


def skip_of(text: str) -> Skip:
    try:
        said = (part.strip().partition("=") for part in text.split(",") if part.strip())
        return {Stream[name.upper()]: int(size) for name, _, size in said}
    except (KeyError, ValueError):
        raise Broken(f"The server says to skip {text[:80]!r} of the log.") from None


class Skipping:
    """Leaves out what is to be skipped, over as many pieces as it takes."""

    def __init__(self, skip: Skip) -> None:
        self._left = {stream: size for stream, size in skip.items() if size}

    def rest(self, frames: Iterable[tuple[int, Frame]]) -> Iterator[tuple[int, Frame]]:
        for offset, frame in frames:
            left = self._left.pop(side(frame.stream), 0) if self._left else 0
            if left > len(frame.data):
                self._left[side(frame.stream)] = left - len(frame.data)
            if left < len(frame.data):
                yield offset, Frame(frame.stream, frame.time_us, frame.data[left:]) if left else frame
