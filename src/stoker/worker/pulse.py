"""Heartbeats, and how long the lease still holds by our own clock.

A lease counts from the moment in which the heartbeat was sent that the server answered: the server counts from later.
Heartbeats go up a WebSocket, by which the server tells of cancellations at once; where none is to be had, by POST.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import aiohttp
import structlog
from pydantic import ValidationError

from stoker.core.errors import StokerError
from stoker.wire.worker import Beat, Heartbeat, Registered
from stoker.worker.guard import boot_time
from stoker.worker.line import Line, Unknown

log = structlog.get_logger()

_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 10.0
_UNKNOWN: Final = (4401, 4404)
"""With which the server closes the socket of a worker that it does not know."""


class Pulse:
    def __init__(self, line: Line, make: Callable[[], Heartbeat], on_beat: Callable[[Beat], None]) -> None:
        self._line, self._make, self._on_beat = line, make, on_beat
        self.lease_s = self.heartbeat_s = 60.0
        self._renewed_at = 0.0
        self._urged = asyncio.Event()

    def begin(self, registered: Registered, sent_at: float) -> None:
        self.lease_s, self.heartbeat_s = registered.lease_s, max(0.05, registered.heartbeat_s)
        self._renewed_at = sent_at

    @property
    def lease_end(self) -> float:
        """By `boot_time`."""
        return self._renewed_at + self.lease_s

    @property
    def renewed_at(self) -> float:
        return self._renewed_at

    def holds(self) -> bool:
        return boot_time() < self.lease_end

    def urge(self) -> None:
        """The next heartbeat goes now."""
        self._urged.set()

    async def renew(self) -> None:
        """By a request of its own. Raises what went wrong."""
        sent_at = boot_time()
        self._heard(await self._line.heartbeat(self._make()), sent_at)

    async def run(self) -> None:
        """For ever; raises Unknown."""
        delay_s = _FIRST_DELAY_S
        while True:
            began = boot_time()
            try:
                await self._over_socket()
            except (aiohttp.ClientError, OSError, TimeoutError, ValidationError) as error:
                if isinstance(error, aiohttp.WSServerHandshakeError) and error.status in (401, 403, 404):
                    # A proxy that knows no sockets says such things as well; a heartbeat by POST tells.
                    log.info("no socket", status=error.status)
            delay_s = _FIRST_DELAY_S if boot_time() - began > self.heartbeat_s else delay_s
            try:
                await self.renew()
                wait_s = min(delay_s, self.heartbeat_s)
            except Unknown:
                raise
            except StokerError as error:
                log.warning("the server is away", why=error.sentence)
                wait_s = delay_s
            delay_s = min(delay_s * 2, _LONGEST_DELAY_S, self.heartbeat_s)
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))

    async def _over_socket(self) -> None:
        async with self._line.socket() as socket:
            sent: deque[float] = deque()
            beating = asyncio.get_running_loop().create_task(self._beat(socket, sent))
            try:
                async for message in socket:
                    if message.type is not aiohttp.WSMsgType.TEXT:
                        break
                    beat = Beat.model_validate_json(message.data)
                    self._heard(beat, sent.popleft() if beat.renewed and sent else None)
            finally:
                beating.cancel()
                with suppress(asyncio.CancelledError, aiohttp.ClientError, OSError):
                    await beating
            if socket.close_code in _UNKNOWN:
                raise Unknown("The server does not know this worker.")

    async def _beat(self, socket: aiohttp.ClientWebSocketResponse, sent: "deque[float]") -> None:
        while True:
            self._urged.clear()
            if sent and boot_time() - sent[0] > 2 * self.heartbeat_s:
                # Nobody is at the other end.
                await socket.close()
                return
            sent.append(boot_time())
            await socket.send_str(self._make().model_dump_json())
            with suppress(TimeoutError):
                async with asyncio.timeout(self.heartbeat_s):
                    await self._urged.wait()

    def _heard(self, beat: Beat, sent_at: float | None) -> None:
        if beat.renewed and sent_at is not None:
            self._renewed_at = max(self._renewed_at, sent_at)
        self._on_beat(beat)


async def patiently(delay_s: float) -> float:
    """Waits before the next try, and says how long to wait after it."""
    await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
    return min(delay_s * 2, _LONGEST_DELAY_S)
