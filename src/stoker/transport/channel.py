"""HTTP over channels of an SSH connection: to aiohttp a channel is a transport like any other."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    import asyncssh
    from aiohttp.client import ClientTimeout
    from aiohttp.client_reqrep import ClientRequest
    from aiohttp.tracing import Trace

Dial = Callable[[str, asyncio.Protocol], Awaitable[None]]
"""Connects a protocol to the unix socket of that path, on the other side."""


class ChannelConnector(aiohttp.BaseConnector):
    def __init__(self, dial: Dial, path: str, limit: int) -> None:
        super().__init__(limit=limit)
        self._dial, self._path = dial, path

    async def _create_connection(
        self, req: "ClientRequest", traces: "list[Trace]", timeout: "ClientTimeout"
    ) -> ResponseHandler:
        protocol = self._factory()
        await self._dial(self._path, protocol)
        return protocol


class Channel(asyncio.Transport):
    """What a protocol writes to."""

    def __init__(self, channel: "asyncssh.SSHUNIXChannel[bytes]") -> None:
        super().__init__()
        self._channel, self._reading = channel, True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        # The socket below is that of all channels: nobody sets options on it for one.
        return default

    def write(self, data: Any) -> None:
        self._channel.write(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self._channel.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._channel.write_eof()

    def close(self) -> None:
        self._channel.close()

    def abort(self) -> None:
        self._channel.abort()

    def is_closing(self) -> bool:
        return self._channel.is_closing()

    def is_reading(self) -> bool:
        return self._reading

    def pause_reading(self) -> None:
        self._reading = False
        self._channel.pause_reading()

    def resume_reading(self) -> None:
        self._reading = True
        self._channel.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._channel.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._channel.set_write_buffer_limits(high, low)


class Session:
    """Hears a channel for a protocol. `ended` is called once, when the channel is gone."""

    def __init__(self, protocol: asyncio.Protocol, ended: Callable[[], None]) -> None:
        self._protocol, self._ended = protocol, ended

    def connection_made(self, chan: "asyncssh.SSHUNIXChannel[bytes]") -> None:
        self._protocol.connection_made(Channel(chan))

    def session_started(self) -> None:
        """Nothing has to be said first."""

    def data_received(self, data: bytes, datatype: object) -> None:
        self._protocol.data_received(data)

    def eof_received(self) -> bool:
        return bool(self._protocol.eof_received())

    def pause_writing(self) -> None:
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._protocol.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()
        # As a socket would say it: whoever waits knows no errors of SSH.
        self._protocol.connection_lost(None if exc is None else ConnectionResetError(str(exc)))
