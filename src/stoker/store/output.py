"""What swarm tasks print, where it is longer than what travels with the report of their end: files by attempt.

An append names its offset: what is already there is skipped, and a gap is refused, so that it may be said twice. It is
on disk before it is answered.
"""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Final
from uuid import UUID

from stoker.core.errors import Conflict, Unavailable, UserError
from stoker.core.limits import MOST_OUTPUT_BYTES

STREAMS: Final = ("stdout", "stderr")
PIECE_BYTES: Final = 1024 * 1024


class OutputGap(Conflict):
    code = "output_gap"


class OutputStore:
    def __init__(self, root: Path, most_bytes: int = MOST_OUTPUT_BYTES) -> None:
        self._root, self.most_bytes = root, most_bytes

    async def append(self, task: UUID, attempt: int, stream: str, offset: int, piece: bytes) -> int:
        """The size of what is kept afterwards. What is beyond the limit is not."""
        if len(piece) > PIECE_BYTES:
            raise UserError(f"One piece has {len(piece)} bytes.", hint=f"Send at most {PIECE_BYTES} at a time.")
        return await asyncio.to_thread(self._append, self._path(task, attempt, stream), offset, piece)

    def _append(self, path: Path, offset: int, piece: bytes) -> int:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                if offset > size:
                    raise OutputGap(f"{size} bytes are kept, before {offset}.", hint=f"Send it again from {size}.")
                fresh = piece[size - offset : self.most_bytes - offset]
                if fresh:
                    os.pwrite(descriptor, fresh, size)
                    os.fdatasync(descriptor)
                return max(size, size + len(fresh))
            finally:
                os.close(descriptor)
        except OSError as error:
            raise Unavailable(f"The output cannot be kept: {error.strerror}.", code="no_space") from error

    async def read(self, task: UUID, attempt: int, stream: str, offset: int, most: int) -> bytes | None:
        """None where there is no such file."""
        return await asyncio.to_thread(self._read, self._path(task, attempt, stream), offset, min(most, PIECE_BYTES))

    def _read(self, path: Path, offset: int, most: int) -> bytes | None:
        try:
            with path.open("rb") as file:
                file.seek(offset)
                return file.read(most)
        except FileNotFoundError:
            return None

    async def delete(self, task: UUID) -> None:
        await asyncio.to_thread(shutil.rmtree, self._directory(task), ignore_errors=True)

    def _directory(self, task: UUID) -> Path:
        return self._root / task.hex[-2:] / str(task)

    def _path(self, task: UUID, attempt: int, stream: str) -> Path:
        assert stream in STREAMS
        return self._directory(task) / f"{attempt}.{stream}"
