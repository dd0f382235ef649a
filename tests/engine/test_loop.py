"""The driver of loops: woken by the clock and by hints, one pass at a time, errors contained and shown."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from stoker.core.errors import Unavailable
from stoker.engine.loop import Counts, Loop, Once
from tests.engine.conftest import NEVER_S, eventually


@asynccontextmanager
async def looping(once: Once, period_s: float) -> AsyncIterator[Loop]:
    loop = Loop("test", once, period_s, random.Random(1))
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def passed(loop: Loop, count: int) -> None:
    await holds(lambda: loop.passes >= count, f"{count} passes")


async def holds(condition: Callable[[], bool], what: str) -> None:
    async def happened() -> bool:
        return condition()

    await eventually(happened, what, deadline_s=10.0)


def now() -> float:
    return asyncio.get_running_loop().time()


class Passes:
    """Remembers when it was called and how many of it ran at once."""

    def __init__(self, *counts: Counts) -> None:
        self.counts = list(counts)
        self.at: list[float] = []
        self.running = self.most_at_once = 0

    async def once(self) -> Counts:
        self.at.append(now())
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        await asyncio.sleep(0.002)
        self.running -= 1
        return self.counts.pop(0) if self.counts else Counts()

    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.at, self.at[1:], strict=False)]


async def test_the_period_is_the_clock_and_it_is_jittered() -> None:
    """Replicas that were started together do not keep knocking at the database together."""
    passes = Passes()
    async with looping(passes.once, 0.05) as loop:
        await passed(loop, 6)
    gaps = passes.gaps()
    assert all(gap >= 0.05 * 0.9 for gap in gaps)
    loop = Loop("test", passes.once, 100.0, random.Random(1))
    waits = [await loop._pass() for _ in range(20)]
    assert all(90.0 <= wait <= 110.0 for wait in waits) and len(set(waits)) == 20


async def test_a_hint_wakes_it_before_its_period() -> None:
    passes = Passes()
    async with looping(passes.once, NEVER_S) as loop:
        await passed(loop, 1)
        for count in range(2, 6):
            loop.hint()
            await passed(loop, count)


async def test_a_hint_during_a_pass_means_another_pass() -> None:
    """What the hint is about may have come after the pass had looked."""
    looking, go_on = asyncio.Event(), asyncio.Event()

    async def once() -> Counts:
        looking.set()
        await go_on.wait()
        return Counts()

    async with looping(once, NEVER_S) as loop:
        await looking.wait()
        loop.hint()
        go_on.set()
        await passed(loop, 2)


async def test_hints_are_one_hint_and_passes_never_overlap() -> None:
    passes = Passes()
    async with looping(passes.once, NEVER_S) as loop:
        for _ in range(200):
            loop.hint()
            await asyncio.sleep(0.0001)
        await passed(loop, 2)
        assert passes.most_at_once == 1
        assert len(passes.at) < 200


async def test_more_to_do_comes_before_the_period_and_never_after() -> None:
    passes = Passes(Counts(2, again_after_s=0.0), Counts(3, again_after_s=-5.0), Counts(4, again_after_s=0.05))
    async with looping(passes.once, NEVER_S) as loop:
        await passed(loop, 4)
        assert passes.gaps()[2] >= 0.05
        assert loop.report() == {"passes": 4, "did": 9, "failures": 0, "error": ""}
    late = Passes(Counts(again_after_s=NEVER_S))
    async with looping(late.once, 0.02) as loop:
        await passed(loop, 2)


async def test_a_pass_that_fails_is_shown_and_tried_again() -> None:
    errors: list[Exception] = [Unavailable("PostgreSQL is away."), KeyError("a bug"), ValueError()]

    async def once() -> Counts:
        if errors:
            raise errors.pop(0)
        return Counts(1)

    async with looping(once, 0.1) as loop:
        await holds(lambda: loop.failures == 1, "the first failure is shown")
        assert "PostgreSQL is away." in loop.error
        await holds(lambda: loop.failures == 3, "all failures are shown")
        assert loop.report() == {"passes": 0, "did": 0, "failures": 3, "error": "ValueError"}
        await passed(loop, 1)
        assert loop.report() == {"passes": 1, "did": 1, "failures": 3, "error": ""}


async def test_a_long_period_is_not_the_time_a_failure_lasts() -> None:
    async def once() -> Counts:
        raise Unavailable("Not now.")

    assert await Loop("test", once, NEVER_S, random.Random(1))._pass() <= 2.0


async def test_what_a_pass_had_to_leave_out_by_our_fault_is_shown() -> None:
    """The pass itself went on: it is no failure, but it is a bug."""
    passes = Passes(Counts(3, bugs=1, error="a record is broken"))
    loop = Loop("test", passes.once, NEVER_S, random.Random(1))
    await loop._pass()
    assert (loop.passes, loop.failures, loop.bugs, loop.error) == (1, 0, 1, "a record is broken")
    await loop._pass()
    assert (loop.bugs, loop.error) == (1, "")
