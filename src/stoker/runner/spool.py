"""A log that grows: what was read from the job waits in memory for a moment, then lies on disk, and readers are told.

Writes happen in a thread and take whatever came while the write before was under way. When the disk is slow or full,
`full` turns true and whoever feeds the spool has to wait; nothing is dropped, and the write is tried again and again.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from stoker.runner.limits import PENDING_BYTES, RETRY_S
from stoker.runner.segment import Segments
from stoker.wire.frame import FRAME_BYTES, Frame, Stream, encode, head

Say = Callable[[str], None]

_WORTH_A_BUFFER: Final = 4096
"""Data of this size is not copied behind its header; the kernel gets both."""


async def persist(what: str, act: Callable[[], None], say: Say) -> None:
    """Does something to the disk, again every second until it succeeds: people make room on a full disk."""
    failed = False
    while True:
        try:
            await asyncio.to_thread(act)
        except OSError as error:
            if not failed:
                say(f"{what} cannot be written ({error.strerror}); trying again until it can")
            failed = True
            await asyncio.sleep(RETRY_S)
        else:
            if failed:
                say(f"{what} is written now")
            return


class Spool:
    """One log of one runner; `drive` runs as long as something may be put."""

    def __init__(self, what: str, segments: Segments, say: Say, *, delay_s: float = 0.0) -> None:
        """With a delay, what was put waits so long for company; for a log that nobody watches."""
        self._what, self._segments, self._say, self._delay_s = what, segments, say, delay_s
        self._hurry = asyncio.Event()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._wanted = asyncio.Event()
        self._grown = asyncio.Event()
        self.room = asyncio.Event()
        """Set while more may be put."""
        self.room.set()
        self.complete = False
        """It grows no more."""

    @property
    def end(self) -> int:
        return self._segments.end

    @property
    def full(self) -> bool:
        return self._pending_bytes >= PENDING_BYTES

    def put(self, stream: Stream, data: bytes) -> None:
        """Takes bytes at once, whether or not there is room: room is for the caller to look at beforehand."""
        for at in range(0, len(data), FRAME_BYTES):
            frame = Frame(stream, time.time_ns() // 1000, data[at : at + FRAME_BYTES])
            buffers = [head(frame), frame.data] if len(frame.data) >= _WORTH_A_BUFFER else [encode(frame)]
            self._pending += buffers
            self._pending_bytes += sum(map(len, buffers))
        if self.full:
            self.room.clear()
        self._wanted.set()

    async def drive(self) -> None:
        """Writes what was put, for ever; cancelled when the runner leaves."""
        while True:
            await self._wanted.wait()
            if self._delay_s:
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._delay_s):
                        await self._hurry.wait()
            self._wanted.clear()
            batch, self._pending = self._pending, []
            size = sum(map(len, batch))

            def write(batch: list[bytes] = batch) -> None:
                self._segments.append(batch)

            await persist(self._what, write, self._say)
            self._pending_bytes -= size
            if not self.full:
                self.room.set()
            self._announce()

    async def flush(self) -> None:
        """Returns when everything that was put can be read."""
        self._hurry.set()
        while self._pending_bytes:
            await self._grown.wait()
        self._hurry.clear()

    async def seal(self) -> None:
        """Returns when everything is on disk for good; nothing may be put after this."""
        await self.flush()
        await persist(self._what, self._segments.sync, self._say)

    def finish(self) -> None:
        """Tells readers that there will be no more: said once the end of the job is known, so that they hear both."""
        self.complete = True
        self._announce()

    async def read(self, offset: int, limit: int) -> bytes:
        if offset == self.end:
            return b""
        return await asyncio.to_thread(self._segments.read, offset, limit)

    async def forget(self, offset: int) -> None:
        if self._segments.forgettable(offset):
            await asyncio.to_thread(self._segments.forget, offset)

    async def grown(self, offset: int, wait_s: float) -> None:
        """Returns when there is more than `offset`, when there will be no more, or when the time is over."""
        try:
            async with asyncio.timeout(wait_s):
                while self.end <= offset and not self.complete:
                    await self._grown.wait()
        except TimeoutError:
            return

    def _announce(self) -> None:
        grown, self._grown = self._grown, asyncio.Event()
        grown.set()


class OwnLog:
    """What the runner did and why, in sentences; kept beside the job's log and read like it."""

    def __init__(self, spool: Spool, most_bytes: int) -> None:
        self.spool, self._left = spool, most_bytes

    def say(self, sentence: str) -> None:
        line = (sentence.rstrip() + "\n").encode()
        # A disk that is full, or an error that repeats itself: the log of a log must not fill the memory.
        if self.spool.complete or self.spool.full or self._left < len(line):
            return
        self._left -= len(line)
        self.spool.put(Stream.RUNNER, line)
