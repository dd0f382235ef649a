"""A socket in a container's box on which its runner says that something changed. What it says is a hint.

Its job can write there too, as often as it likes: we listen again only after a moment.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

NAME: Final = "notify.sock"
REST_S: Final = 0.05
_MOST: Final = 64
"""Taken at once."""


class Nudge:
    """Open from the moment it is made, until `close`."""

    def __init__(self, box: Path, heard: Callable[[], None]) -> None:
        self._loop, self._heard = asyncio.get_running_loop(), heard
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        directory = os.open(box, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(FileNotFoundError):
                os.unlink(NAME, dir_fd=directory)
            # The path of the box may be too long for a socket.
            self._socket.bind(f"/proc/self/fd/{directory}/{NAME}")
        finally:
            os.close(directory)
        self._rest: asyncio.TimerHandle | None = None
        self._listen()

    def close(self) -> None:
        if self._rest is not None:
            self._rest.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def _listen(self) -> None:
        self._loop.add_reader(self._socket, self._read)

    def _read(self) -> None:
        with suppress(BlockingIOError):
            for _ in range(_MOST):
                self._socket.recv(256)
        self._loop.remove_reader(self._socket)
        self._rest = self._loop.call_later(REST_S, self._listen)
        self._heard()
