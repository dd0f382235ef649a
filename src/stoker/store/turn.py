"""Long work in pieces: in between others have their turn, who may only want to know whether the server is well."""

import asyncio
import time
from collections.abc import AsyncIterator, Generator, Iterable
from itertools import islice
from typing import Final, TypeVar

PIECE: Final = 500
"""Steps of a microsecond or two."""
MOST_TURNS: Final = 20
"""Of others, one after the other; then the long work goes on, however busy they are."""
IDLE_S: Final = 0.0001
"""A turn that was over so soon nobody needed."""

T = TypeVar("T")


async def let_others() -> None:
    """A request takes ten turns of the loop. If each had to wait for a piece of long work it would take ten times as
    long as that, so others go on for as long as they have something to do."""
    for _ in range(MOST_TURNS):
        before = time.perf_counter()
        await asyncio.sleep(0)
        if time.perf_counter() - before < IDLE_S:
            return


async def pieces(items: Iterable[T], size: int = PIECE) -> AsyncIterator[list[T]]:
    coming = iter(items)
    while some := list(islice(coming, size)):
        yield some
        await let_others()


async def in_turns(steps: Generator[None, None, T]) -> T:
    """What it returns; others have their turn whenever it yields."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        await let_others()
