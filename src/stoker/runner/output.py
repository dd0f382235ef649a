"""Reads what a job writes, in large pieces, without blocking, and only while the log has room for it.

The bytes are neither looked at nor joined: a piece is what one read gave. When the log is full the pipes are left
alone, and the job waits in its `write`, as it would for a slow terminal.
"""

import asyncio
import fcntl
import os
import pty
import termios
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial

from stoker.runner.limits import BREATH_S, PIPE_BYTES, READS_AT_ONCE
from stoker.runner.spool import Spool
from stoker.runner.tenant import User
from stoker.wire.frame import FRAME_BYTES, Stream

Take = Callable[[Stream, bytes], None]


class Channel:
    """Both ends of where a job writes to; `terminal` is the path of the pseudo terminal, where it is one."""

    def __init__(self, readers: Iterable[tuple[int, Stream]], stdout: int, stderr: int, terminal: str = "") -> None:
        self.readers, self.stdout, self.stderr, self.terminal = tuple(readers), stdout, stderr, terminal
        self._writers = {stdout, stderr}

    def close_writers(self) -> None:
        """Once the last program has them: only then does the end of the programs end the output. Safe to repeat."""
        while self._writers:
            os.close(self._writers.pop())


def open_pipes() -> Channel:
    out, err = os.pipe(), os.pipe()
    # Refused to a user who has many of them; it works with a small one too.
    with suppress(PermissionError):
        fcntl.fcntl(out[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return Channel(((out[0], Stream.STDOUT), (err[0], Stream.STDERR)), out[1], err[1])


def open_terminal(user: User | None) -> Channel:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    if user is not None:
        # He opens it by its name.
        os.fchown(theirs, user.uid, user.gid)
    os.fchmod(theirs, 0o600)
    return Channel(((ours, Stream.STDOUT),), theirs, theirs, os.ttyname(theirs))


class Output:
    """The readers of one channel; they are closed when their end has come, or by `drain`."""

    def __init__(self, readers: Iterable[tuple[int, Stream]], spool: Spool, take: Take) -> None:
        self._loop = asyncio.get_running_loop()
        self._spool, self._take = spool, take
        self._open = dict(readers)
        self._waiting: dict[int, asyncio.Handle | asyncio.Task[None]] = {}
        self.closed = asyncio.Event()
        for descriptor in self._open:
            os.set_blocking(descriptor, False)
            self._listen(descriptor)

    def _listen(self, descriptor: int) -> None:
        self._waiting.pop(descriptor, None)
        self._loop.add_reader(descriptor, self._ready, descriptor)

    def _ready(self, descriptor: int) -> None:
        for _ in range(READS_AT_ONCE):
            if self._spool.full:
                self._loop.remove_reader(descriptor)
                self._waiting[descriptor] = self._loop.create_task(self._listen_later(descriptor))
                return
            size = self._read(descriptor)
            if size == 0:
                return
            if size < FRAME_BYTES:
                # It writes more slowly than we read: let a few lines gather.
                self._loop.remove_reader(descriptor)
                self._waiting[descriptor] = self._loop.call_later(BREATH_S, partial(self._listen, descriptor))
                return

    async def _listen_later(self, descriptor: int) -> None:
        await self._spool.room.wait()
        self._listen(descriptor)

    def _read(self, descriptor: int) -> int:
        """Zero: nothing there now, or the end, after which it is closed."""
        try:
            data = os.read(descriptor, FRAME_BYTES)
        except BlockingIOError:
            return 0
        except OSError:
            # A pseudo terminal says EIO when the last program has closed it.
            data = b""
        if not data:
            self._close(descriptor)
            return 0
        self._take(self._open[descriptor], data)
        return len(data)

    async def drain(self) -> None:
        """Takes what is still in the channel and closes it, also if somebody else keeps the other end open."""
        for descriptor in list(self._open):
            self._stop_listening(descriptor)
            while descriptor in self._open:
                await self._spool.room.wait()
                if self._read(descriptor) == 0:
                    self._close(descriptor)

    def _stop_listening(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)
        waiting = self._waiting.pop(descriptor, None)
        if waiting is not None:
            waiting.cancel()

    def _close(self, descriptor: int) -> None:
        if self._open.pop(descriptor, None) is not None:
            self._stop_listening(descriptor)
            os.close(descriptor)
        if not self._open:
            self.closed.set()
