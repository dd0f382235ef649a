"""uvicorn inside a process that has its own ideas about signals, sockets and ends."""

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.types import ASGIApp

from stoker.core.errors import Conflict, UserError

GRACE_S: Final = 5.0
"""How long requests under way may take to end when the server stops."""
BACKLOG: Final = 2048
MOST_MESSAGE_BYTES: Final = 4 * 1024 * 1024
"""In one message of a socket."""


def bound(host: str, port: int) -> socket.socket:
    """Taken before anything else is started: a port that is in use is said at once."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP: asyncio turns Nagle's algorithm off only where it reads that, and every answer would be 40 ms late.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(
                f"Port {port} on {host} is in use.",
                hint="Another server may be running; choose another port with STOKER_PORT.",
                code="port_in_use",
            ) from None
        raise UserError(f"{host}:{port} cannot be listened on: {error.strerror}.", code="bad_address") from None
    return listener


def url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class Http(uvicorn.Server):
    """Listens to `stop`, not to signals, and does not wake up ten times a second to see whether it should."""

    def __init__(self, app: ASGIApp) -> None:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            date_header=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=75,
            timeout_graceful_shutdown=int(GRACE_S),
            h11_max_incomplete_event_size=64 * 1024,
            ws="wsproto",
            ws_max_size=MOST_MESSAGE_BYTES,
            ws_ping_interval=20.0,
            ws_ping_timeout=20.0,
        )
        super().__init__(config)
        self._stop, self._up = asyncio.Event(), asyncio.Event()

    async def begin(self, listener: socket.socket) -> "asyncio.Task[None]":
        """Returns once it answers; the task ends after `stop`."""
        task = asyncio.get_running_loop().create_task(self.serve(sockets=[listener]), name="http")
        up = asyncio.ensure_future(self._up.wait())
        await asyncio.wait((task, up), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if task.done():
            task.result()
        return task

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._up.set()

    def stop(self) -> None:
        self.should_exit = True
        self._stop.set()

    async def main_loop(self) -> None:
        await self._stop.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
