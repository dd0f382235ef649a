"""What changed since somebody last asked: a counter, and those who wait for it to move."""

import asyncio
import secrets


class Changes:
    """A cursor is `<boot>:<number>`. One of another boot, or one that cannot be, is unknown."""

    def __init__(self) -> None:
        self.boot = secrets.token_hex(8)
        self._number = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    def bump(self) -> int:
        """The number of a new change; whoever waits is woken."""
        self._number += 1
        self._wake()
        return self._number

    @property
    def cursor(self) -> str:
        return f"{self.boot}:{self._number}"

    def number(self, cursor: str) -> int | None:
        """None: unknown, so everything has changed."""
        boot, _, number = cursor.partition(":")
        if boot != self.boot or not (number.isascii() and number.isdecimal()) or int(number) > self._number:
            return None
        return int(number)

    async def beyond(self, number: int, wait_s: float) -> None:
        """Returns when there is a later change, at the latest after `wait_s`."""
        if self._number > number or wait_s <= 0 or self._closed:
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(woken)
        try:
            await asyncio.wait((woken,), timeout=wait_s)
        finally:
            self._waiting.discard(woken)

    def close(self) -> None:
        """Nobody waits any longer: we are leaving."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        for woken in self._waiting:
            if not woken.done():
                woken.set_result(None)
