"""An event loop whose clock jumps to the next timer, and stands still while the database works."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
STUCK_S = 60.0
"""Real seconds after which a query that does not come back is a hang."""


class Jump(selectors.SelectSelector):
    """What would have been slept is added to the clock; what is in flight is waited for in real time."""

    clock = 0.0
    querying = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout == 0:
            # What is ready goes first: when the database answers, in real time, must decide nothing.
            return []
        if self.querying:
            ready = super().select(STUCK_S)
            if not ready:
                raise RuntimeError("the database does not answer")
            return ready
        if ready := super().select(0):
            return ready
        if timeout is None:
            raise RuntimeError("deadlock: nothing is ready and no timer is set")
        self.clock += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jump = Jump()
        super().__init__(self.jump)

    def time(self) -> float:
        return self.jump.clock


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
