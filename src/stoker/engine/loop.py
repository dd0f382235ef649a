"""The one driver of all loops: woken by a hint and by the clock, never twice at once, errors contained and shown."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import structlog

from stoker.core.errors import Unavailable

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Counts:
    """What one pass did. `again_after_s`: there is something to do then, before the period is over."""

    did: int = 0
    again_after_s: float | None = None
    bugs: int = 0
    """Changes that failed by our own fault and were left out; the pass went on without them."""
    error: str = ""


Once = Callable[[], Awaitable[Counts]]


class Loop:
    """`once` takes no input and may be called at any time; the period is its retry."""

    def __init__(self, name: str, once: Once, period_s: float, dice: random.Random) -> None:
        self.name, self._once, self._period_s, self._dice = name, once, period_s, dice
        self._hint = asyncio.Event()
        self.passes = 0
        self.did = 0
        self.failures = 0
        self.bugs = 0
        """Failures that no outage explains."""
        self.error = ""

    def hint(self) -> None:
        self._hint.set()

    async def run(self) -> None:
        while True:
            self._hint.clear()
            wait_s = await self._pass()
            try:
                async with asyncio.timeout(wait_s):
                    await self._hint.wait()
            except TimeoutError:
                pass

    async def _pass(self) -> float:
        """How long to wait for the next one."""
        jittered_s = self._period_s * self._dice.uniform(0.9, 1.1)
        try:
            counts = await self._once()
        except Exception as error:
            self.failures += 1
            self.error = str(error) or type(error).__name__
            known = isinstance(error, Unavailable)
            self.bugs += not known
            log.warning("loop failed", loop=self.name, error=self.error, exc_info=None if known else error)
            return min(jittered_s, 2.0)
        self.passes += 1
        self.did += counts.did
        self.bugs += counts.bugs
        self.error = counts.error
        if counts.again_after_s is None:
            return jittered_s
        return max(0.0, min(jittered_s, counts.again_after_s))

    def report(self) -> dict[str, Any]:
        return {"passes": self.passes, "did": self.did, "failures": self.failures, "error": self.error}
