"""Gathers what the workers of the swarm say, and says it to the database together.

Theory of operation. A round is one transaction: words that came while the round before was on its way, and the claims
of those who wait for a first task. There is no timer: a lone word makes a round of its own at once, and a thousand
workers make few and large ones. A round takes half of those who speak just now, so that the server reads and answers
one half while the database hears the other. A claim that finds nothing stands until something becomes available, here
or elsewhere; of one worker only the latest claim stands. Since those who stand are served in the very transaction that
releases a task, a chain of tasks costs one commit a link.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import structlog

from stoker.core.errors import StokerError, Unavailable
from stoker.core.ids import WorkerId
from stoker.engine.loop import Counts
from stoker.engine.swarm import Heard, Swarm, Word
from stoker.store.claim import Ask, Work
from stoker.store.continuation import Opened

MOST_WORDS: Final = 64
"""In one round."""
MOST_QUEUED: Final = 20_000
PERIOD_S: Final = 2.0
"""How often those who stand look by themselves: a hint may be lost."""
NOTHING: Final[list[Work]] = []

log = structlog.get_logger()


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request of a worker, from its coming to its answer."""

    word: Word
    stands: bool
    """Whether its claim waits when there is nothing."""
    asking: bool = False
    """Its standing claim is in a round: what that gives it must not be lost."""
    answer: "asyncio.Future[Heard]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def settle(self, heard: Heard) -> None:
        if not self.answer.done():
            self.answer.set_result(heard)

    def fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class Muster:
    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._queue: deque[_Waiter] = deque()
        self._standing: dict[WorkerId, _Waiter] = {}
        self._look = False
        """Something may be available for those who stand."""
        self._rounds: asyncio.Task[None] | None = None

    @property
    def standing(self) -> int:
        return len(self._standing)

    async def say(self, word: Word, wait_s: float = 0.0) -> Heard:
        """The answer to a word; its claim may wait so long for a first task."""
        if len(self._queue) >= MOST_QUEUED:
            raise Unavailable("Too many workers speak at once.", code="overloaded")
        waiter = _Waiter(word, wait_s > 0 and word.ask is not None)
        self._queue.append(waiter)
        self._go()
        if not waiter.stands:
            return await waiter.answer
        try:
            async with asyncio.timeout(wait_s):
                return await asyncio.shield(waiter.answer)
        except TimeoutError:
            waiter.stands = False
            if self._standing.get(word.worker) is waiter and not waiter.asking:
                del self._standing[word.worker]
                return Heard(True, [], NOTHING)
            # It is in the queue or in a round: what that gives it must not be lost.
            return await waiter.answer
        except asyncio.CancelledError:
            waiter.stands = False
            waiter.answer.cancel()
            if self._standing.get(word.worker) is waiter:
                del self._standing[word.worker]
            raise

    def heard(self, opened: Opened) -> None:
        """Tasks became available on this replica. Those that a round opened it has offered to everybody already."""
        if self._standing and asyncio.current_task() is not self._rounds:
            self._look = True
            self._go()

    async def once(self) -> Counts:
        """Other replicas may have made tasks available."""
        self._swarm.kinds.forget()
        if self._standing:
            self._look = True
            self._go()
        return Counts(len(self._standing))

    async def close(self) -> None:
        if self._rounds is not None:
            await self._rounds
        for waiter in self._standing.values():
            waiter.settle(Heard(True, [], NOTHING))
        self._standing.clear()

    def _go(self) -> None:
        if self._rounds is None:
            self._rounds = asyncio.get_running_loop().create_task(self._run(), name="muster")

    async def _run(self) -> None:
        answered = 0
        try:
            while self._queue or self._look:
                waiters = [self._queue.popleft() for _ in range(share(len(self._queue), answered))]
                self._look = False
                await self._round(waiters)
                answered = len(waiters)
        finally:
            self._rounds = None

    async def _round(self, waiters: Sequence[_Waiter]) -> None:
        for waiter in waiters:
            if waiter.word.ask is not None:
                self._replace(waiter)
        standing = list(self._standing.values())
        for waiter in standing:
            waiter.asking = True
        try:
            heard, served = await self._swarm.hear(
                [_word(waiter) for waiter in waiters], [_ask(waiter) for waiter in standing]
            )
        except StokerError as error:
            # Nothing happened, or nobody knows. Those who stand go on standing.
            self._served(standing, [NOTHING] * len(standing))
            for waiter in waiters:
                waiter.fail(error)
        except Exception as error:  # noqa: BLE001 - whatever broke, nobody is left waiting
            self._served(standing, [NOTHING] * len(standing))
            await self._apart(waiters, error)
        else:
            self._served(standing, served)
            for waiter, one in zip(waiters, heard, strict=True):
                self._answer(waiter, one)

    def _served(self, standing: Sequence[_Waiter], served: Sequence[list[Work]]) -> None:
        for waiter, works in zip(standing, served, strict=True):
            waiter.asking = False
            if works or not waiter.stands:
                self._standing.pop(waiter.word.worker, None)
                waiter.settle(Heard(True, [], works))

    def _replace(self, waiter: _Waiter) -> None:
        """A worker that claims again does not wait for its earlier claim any more."""
        if (earlier := self._standing.pop(waiter.word.worker, None)) is not None:
            earlier.settle(Heard(True, [], NOTHING))

    def _answer(self, waiter: _Waiter, heard: Heard) -> None:
        if waiter.stands and heard.known and not heard.works and not heard.refused:
            # Its news is told; what is left of it is the claim.
            waiter.word = replace(waiter.word, ends=(), unstarted=(), started=(), samples=())
            self._replace(waiter)
            self._standing[waiter.word.worker] = waiter
        else:
            waiter.settle(heard)

    async def _apart(self, waiters: Sequence[_Waiter], error: Exception) -> None:
        """Something that one of them said cannot be stored: the others must not suffer for it."""
        if len(waiters) <= 1:
            log.error("a word of a worker broke", exc_info=error)
            for waiter in waiters:
                waiter.fail(error)
            return
        for waiter in waiters:
            await self._round([waiter])


def share(queued: int, answered: int) -> int:
    """Of the words that wait, those for the next round: half of all who speak, with those who were answered just now
    and will speak again. While the database hears one half, the other is answered and read."""
    return min(MOST_WORDS, queued, -(-(queued + answered) // 2))


def _word(waiter: _Waiter) -> Word:
    """Who is not there any more has said what it said, and gets nothing."""
    return replace(waiter.word, ask=None) if waiter.answer.cancelled() else waiter.word


def _ask(waiter: _Waiter) -> Ask:
    assert waiter.word.ask is not None
    return waiter.word.ask
