"""Server-sent events: an answer that goes on, with ids by which a client that was cut off goes on where it was."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from stoker.core.errors import Unavailable
from stoker.core.limits import MOST_STREAMS
from stoker.server.context import Context

PING: Final = b": still here\n\n"
PING_S: Final = 15.0
"""So that proxies in between do not take silence for the end."""
LOOK_S: Final = 2.0
"""When nobody rang: another replica may have written without our hearing of it."""
_HEADERS: Final = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


SCHEMA: Final = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
    "description": "One event of the stream.",
}


def event(data: str, *, id: int | str | None = None, name: str = "") -> bytes:
    """`data` is one line."""
    lines = [f"id: {id}"] if id is not None else []
    lines += [f"event: {name}"] if name else []
    return "\n".join((*lines, f"data: {data}", "", "")).encode()


def ping(id: int | str) -> bytes:
    """A sign of life that says how far everything was told: who is cut off does not ask for what is long gone."""
    return f"id: {id}\n".encode() + PING


class _Stream(StreamingResponse):
    """Closes its events however it ends; broken off in the middle of a send, they would wait for the collector."""

    def __init__(self, events: AsyncGenerator[bytes, None], headers: Mapping[str, str]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._events.aclose()


def streamed(
    context: Context, events: AsyncGenerator[bytes, None], headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    if context.streams >= MOST_STREAMS:
        raise Unavailable(f"{MOST_STREAMS} logs and events are being followed here.", code="too_many_streams")
    return _Stream(_counted(context, events), {**_HEADERS, **(headers or {})})


async def _counted(context: Context, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    context.streams += 1
    try:
        # At once, so that the client knows that it is heard before there is anything to say.
        yield PING
        async for one in events:
            yield one
    finally:
        context.streams -= 1
        await events.aclose()


class Silence:
    """Says when it is time for a ping."""

    def __init__(self) -> None:
        self._since = asyncio.get_running_loop().time()

    def broken(self) -> None:
        self._since = asyncio.get_running_loop().time()

    def too_long(self) -> bool:
        if asyncio.get_running_loop().time() - self._since < PING_S:
            return False
        self.broken()
        return True
