"""A file of lines that only grows: what was said is on disk before anybody acts on it."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from stoker.runner.place import write_file
from stoker.runner.segment import sync_directory
from stoker.shim.disk import explained


class Ledger:
    """Not for two threads at once. A line that a crash cut short was never acknowledged, and is not there."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[list[str]]:
        """The words of each line, oldest first."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return []
        whole, _, torn = data.rpartition(b"\n")
        if torn:
            os.truncate(self._path, len(data) - len(torn))
        return [line.split(" ") for line in whole.decode().splitlines()]

    def append(self, lines: Iterable[Sequence[object]]) -> None:
        with explained(self._path.name):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                try:
                    rest = memoryview(_text(lines))
                    while rest:
                        # A disk that is nearly full may take a part only.
                        rest = rest[os.write(descriptor, rest) :]
                    os.fsync(descriptor)
                except OSError:
                    os.ftruncate(descriptor, size)
                    raise
            finally:
                os.close(descriptor)
            if size == 0:
                sync_directory(self._path.parent)

    def rewrite(self, lines: Iterable[Sequence[object]]) -> None:
        with explained(self._path.name):
            write_file(self._path, _text(lines))


def _text(lines: Iterable[Sequence[object]]) -> bytes:
    return "".join(" ".join(map(str, words)) + "\n" for words in lines).encode()
