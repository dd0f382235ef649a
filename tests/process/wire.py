"""The wire between a worker and its server, which a test may cut: nothing is heard any more, and nobody is told why."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

PIECE_BYTES = 65_536


class Wire:
    """Passes on what comes, in both directions. While it is cut connections stay and nothing passes, as behind a router
    that has lost its power."""

    def __init__(self, port: int) -> None:
        self._to = port
        self.url = ""
        self._whole = asyncio.Event()
        self._whole.set()
        self._relays: set[asyncio.Task[None]] = set()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.ensure_future(self._relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._whole.wait()
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            try:
                await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
            finally:
                back.transport.abort()
        except OSError:
            # The server is away.
            return
        finally:
            writer.transport.abort()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await source.read(PIECE_BYTES):
                await self._whole.wait()
                target.write(piece)
                await target.drain()
        target.close()

    async def close(self) -> None:
        for relay in self._relays:
            relay.cancel()
        await asyncio.gather(*self._relays, return_exceptions=True)


@asynccontextmanager
async def wired(port: int) -> AsyncIterator[Wire]:
    wire = Wire(port)
    server = await asyncio.start_server(wire.accept, "127.0.0.1", 0)
    wire.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield wire
    finally:
        server.close()
        await wire.close()
