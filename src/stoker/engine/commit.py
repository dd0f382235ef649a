"""The only way anything changes: callers hand in changes, and whatever is waiting is committed together.

Theory of operation. There is no timer: a batch is what came while the batches before it were on their way.
A few lanes run at once, so that PostgreSQL writes one batch while the next is stepped; no two of them touch
the same family (a run with its jobs, an instance, a managed job). A batch that fails is halved until the
change at fault stands alone and fails alone. When the connection is lost the batch is said again, even if its
COMMIT may have happened: every change may be said twice.

What was committed last is remembered. A batch about nothing else is one statement, which the database refuses when
what is remembered is not so; then, and otherwise, the batch locks and loads what it is about.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import NamedTuple
from uuid import UUID

import asyncpg
import structlog

from stoker.core.errors import StokerError, Unavailable
from stoker.core.limits import GIVE_UP_S, MOST_CHANGES, MOST_WAITING
from stoker.engine.batch import Batch, NotAtOnce, commit_batch
from stoker.engine.change import Change
from stoker.engine.clock import Clock
from stoker.engine.draft import Answer, Loaded
from stoker.engine.memory import Memory
from stoker.engine.refusal import broken, explained, for_caller, in_doubt
from stoker.store.database import DISK_FULL, Connection, ConnectionLost, Database

LANES = 2
WORTH_A_LANE = 24
"""Fewer changes than these wait for the batch that is on its way."""
BUSY_S = 0.003
"""When to try again what another replica holds; longer each time."""
LONGEST_BUSY_S = 0.25
TROUBLE_S = 30.0
"""How long the last trouble counts as today's."""
CRUMBS_S = 0.02
"""How long a free lane waits for more than crumbs."""
_PASSING = (TimeoutError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)
"""Errors of the moment, not of the change."""
_OF_THE_SERVER = (
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.OutdatedSchemaCacheError,
)
"""What `Database` makes `Unavailable` of, where it is seen before that."""

log = structlog.get_logger()

Listener = Callable[[Batch], None]
Plan = Callable[[Connection, float], Awaitable[Sequence[Change]]]


@dataclass(slots=True, eq=False)
class _Waiting:
    change: Change
    families: frozenset[UUID]
    since: float
    due: float = 0.0
    """Not before: another replica held what it is about."""
    held: int = 0
    doubtful: bool = False
    """Its COMMIT was cut off once: whatever becomes of it later, it may have happened."""
    answer: "asyncio.Future[Answer]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class _Part(NamedTuple):
    changes: Sequence[Change]
    batch: Batch


_CarryOut = Callable[[Connection, Sequence[Change], float], Awaitable[list[_Part]]]


class Committer:
    def __init__(
        self,
        database: Database,
        clock: Clock,
        new_id: Callable[[], UUID],
        listener: Listener,
        *,
        lanes: int = LANES,
        most_changes: int = MOST_CHANGES,
        memory: Memory | None = None,
    ) -> None:
        self._database, self._clock, self._new_id, self._listener = database, clock, new_id, listener
        self._lanes, self._most_changes = lanes, most_changes
        self._memory = memory or Memory()
        self.owner = 0
        self._queue: deque[_Waiting] = deque()
        self._busy: set[UUID] = set()
        self._running: set[asyncio.Task[None]] = set()
        self._flying = 0
        self._began = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._trouble, self._trouble_at = "", float("-inf")

    @property
    def trouble(self) -> str:
        """What keeps the database from taking changes, when that was so a moment ago and people can mend it."""
        recent = asyncio.get_running_loop().time() - self._trouble_at < TROUBLE_S
        return self._trouble if recent else ""

    @property
    def generation(self) -> int:
        """Of the database's server: what was read of another one may not be so any more."""
        return self._database.generation

    async def commit(self, change: Change) -> Answer:
        """Returns when it is on disk. Raises what stopped it; then nothing of it happened.

        Only `ConnectionLost` with `outcome_unknown` leaves that open: the database went away in the middle of the
        COMMIT and stayed away. Saying the change again is safe, and tells.
        """
        if self._closed:
            raise Unavailable("The server is stopping.")
        if len(self._queue) >= MOST_WAITING:
            raise Unavailable(f"{MOST_WAITING} changes are waiting for the database.", code="overloaded")
        waiting = _Waiting(change, change.families(), asyncio.get_running_loop().time())
        self._queue.append(waiting)
        self._fill_lanes()
        answer = await waiting.answer
        if answer.error is not None:
            raise for_caller(answer.error)
        return answer

    async def commit_planned(self, key: int, plan: Plan) -> list[tuple[Change, Answer | None]] | None:
        """Plan and commit in one transaction, one planner in the cluster; None when another one is at it.

        A change without an answer touches what another commit holds: it is for the next pass. When something breaks,
        the plan is made once more and committed in parts, so that the change at fault fails alone.
        """
        try:
            parts = await self._planned(key, plan, self._whole)
        except (Unavailable, *_PASSING):
            raise
        except Exception:  # noqa: BLE001 - the parts tell which change it was; a plan that breaks itself breaks again
            parts = await self._planned(key, plan, self._halves)
        if parts is None:
            return None
        for part in parts:
            self._heard(part.batch)
        return [(change, part.batch.answers.get(place)) for part in parts for place, change in enumerate(part.changes)]

    async def _planned(self, key: int, plan: Plan, carry_out: _CarryOut) -> list[_Part] | None:
        async with self._database.transaction() as tx:
            if not await tx.fetchval("SELECT pg_try_advisory_xact_lock($1)", key):
                return None
            now = self._clock.now()
            changes = await plan(tx, now)
            return await carry_out(tx, changes, now) if changes else []

    async def _whole(self, tx: Connection, changes: Sequence[Change], now: float) -> list[_Part]:
        return [_Part(changes, await self._committed(tx, changes, now))]

    async def _halves(self, tx: Connection, changes: Sequence[Change], now: float) -> list[_Part]:
        """Under savepoints, not in transactions of their own: who plans counts on its lock until all is committed.

        Parts lock instances one after the other, out of the one order: a deadlock is possible here, and passes.
        """
        savepoint = tx.transaction()
        await savepoint.start()
        try:
            parts = await self._whole(tx, changes, now)
        except (Unavailable, *_PASSING, *_OF_THE_SERVER):
            raise
        except Exception as error:  # noqa: BLE001 - alone, the change at fault is told; the others go on
            # On a connection that is lost this raises, and so it should: that is no change's fault.
            await savepoint.rollback()
            if len(changes) == 1:
                return [_Part(changes, Batch({0: Answer(error=broken(error))}))]
            middle = len(changes) // 2
            return [*await self._halves(tx, changes[:middle], now), *await self._halves(tx, changes[middle:], now)]
        await savepoint.commit()
        return parts

    async def close(self) -> None:
        """Takes nothing new and waits for what is under way."""
        self._closed = True
        while self._running or self._queue:
            self._fill_lanes()
            await (asyncio.wait(self._running) if self._running else asyncio.sleep(BUSY_S))

    def _fill_lanes(self) -> None:
        while len(self._running) < self._lanes:
            # A lane that is free takes no crumbs: a batch costs as much as twenty of the changes in it. But
            # one that takes long (a lock, a lost connection) holds nobody up.
            now = asyncio.get_running_loop().time()
            young = now - self._began < CRUMBS_S
            if self._running and young and len(self._queue) < max(WORTH_A_LANE, self._flying / len(self._running)):
                self._look_again(CRUMBS_S)
                return
            batch = self._take(now)
            if not batch:
                # By the same look at the clock: what falls due between two of them would be left to nobody.
                if held := [one.due for one in self._queue if one.due > now]:
                    self._look_again(min(held) - now)
                return
            families = frozenset[UUID]().union(*(one.families for one in batch))
            self._busy |= families
            self._flying += len(batch)
            self._began = now
            task = asyncio.get_running_loop().create_task(self._run(batch))
            self._running.add(task)
            task.add_done_callback(partial(self._free, families, len(batch)))

    def _look_again(self, delay_s: float) -> None:
        """Later, if nothing fills the lanes before: one timer is enough, however many callers wait."""
        loop = asyncio.get_running_loop()
        if self._timer is not None and self._timer.when() <= loop.time() + delay_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_later(delay_s, self._timer_rang)

    def _timer_rang(self) -> None:
        self._timer = None
        self._fill_lanes()

    def _take(self, now: float) -> list[_Waiting]:
        """The oldest changes whose families no other lane has; order within a family is kept."""
        taken: list[_Waiting] = []
        passed: list[_Waiting] = []
        blocked = set(self._busy)
        while self._queue and len(taken) < self._most_changes:
            one = self._queue.popleft()
            if one.due <= now and one.families.isdisjoint(blocked):
                taken.append(one)
            else:
                blocked |= one.families
                passed.append(one)
        self._queue.extendleft(reversed(passed))
        return taken

    def _free(self, families: frozenset[UUID], size: int, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._flying -= size
        self._busy -= families
        if not task.cancelled():
            task.exception()
            self._fill_lanes()

    async def _run(self, batch: list[_Waiting]) -> None:
        try:
            left = await self._try(batch)
        except asyncio.CancelledError:
            for one in batch:
                one.answer.cancel()
            raise
        except Exception as error:  # noqa: BLE001 - whatever broke, nobody is left waiting
            _fail(batch, explained(error))
        else:
            self._put_back(left)

    def _put_back(self, left: list[_Waiting]) -> None:
        """First in line again, in a moment; until then its lane is free for others."""
        if not left:
            return
        loop = asyncio.get_running_loop()
        old = [one for one in left if self._too_old(one)]
        _fail(old, Unavailable("Another replica held it for too long.", code="busy"))
        left = [one for one in left if one not in old]
        for one in left:
            one.held += 1
            one.due = loop.time() + min(BUSY_S * 2 ** min(one.held, 7), LONGEST_BUSY_S)
        self._queue.extendleft(reversed(left))

    async def _try(self, batch: list[_Waiting]) -> list[_Waiting]:
        """Returns what another replica holds."""
        for tries in count():
            try:
                return self._settle(batch, await self._attempt(batch))
            except (Unavailable, *_PASSING) as error:
                # Also when the COMMIT itself was cut off: said again, what did happen is stale. But once in doubt,
                # it stays in doubt, whatever the later tries die of.
                if isinstance(error, ConnectionLost) and error.outcome_unknown:
                    for one in batch:
                        one.doubtful = True
                if isinstance(error, Unavailable) and error.code == DISK_FULL:
                    # Room is made by people: they had better hear of it now.
                    self._trouble, self._trouble_at = error.sentence, asyncio.get_running_loop().time()
                    _fail(batch, error)
                    break
                batch = self._without_old(batch, error)
                if not batch:
                    break
                await asyncio.sleep(min(0.05 * 2 ** min(tries, 10), 2.0))
            except Exception as error:  # noqa: BLE001 - alone, the change at fault is told; the others go on
                if len(batch) > 1:
                    return await self._halve(batch)
                if isinstance(error, asyncpg.UniqueViolationError) and tries == 0:
                    # The same birth came through another replica at the same moment: now it is seen.
                    continue
                _fail(batch, explained(error))
                break
        return []

    def _without_old(self, batch: list[_Waiting], error: Exception) -> list[_Waiting]:
        """Those that have waited too long for the database are told so."""
        old = [one for one in batch if self._too_old(one)]
        _fail(old, ConnectionLost(f"The database did not take the change: {error}"))
        return [one for one in batch if one not in old]

    async def _halve(self, batch: list[_Waiting]) -> list[_Waiting]:
        middle = len(batch) // 2
        left = await self._try(batch[:middle])
        held = frozenset[UUID]().union(*(one.families for one in left))
        # What was said later of a family that is held must not overtake what was said before.
        left += [one for one in batch[middle:] if not one.families.isdisjoint(held)]
        rest = [one for one in batch[middle:] if one.families.isdisjoint(held)]
        return left + (await self._try(rest) if rest else [])

    async def _attempt(self, batch: list[_Waiting]) -> Batch:
        changes = [one.change for one in batch]
        return await self._at_once(changes) or await self._with_a_look(changes)

    async def _at_once(self, changes: Sequence[Change]) -> Batch | None:
        """In one statement, when all that it needs is remembered, and rightly so."""
        generation = self._database.generation
        remembered = self._memory.lend(changes, generation)
        if remembered is None:
            return None
        try:
            async with self._database.at_once() as tx:
                if self._database.generation != generation:
                    # This connection is new, and leads to a server that may know nothing of it.
                    return None
                return await self._committed(tx, changes, self._clock.now(), remembered)
        except (NotAtOnce, asyncpg.SerializationError, asyncpg.UniqueViolationError):
            return None

    async def _with_a_look(self, changes: Sequence[Change]) -> Batch:
        async with self._database.transaction() as tx:
            return await self._committed(tx, changes, self._clock.now())

    async def _committed(
        self, tx: Connection, changes: Sequence[Change], now: float, remembered: Loaded | None = None
    ) -> Batch:
        generation = self._database.generation
        batch = await commit_batch(tx, changes, now, self.owner, self._new_id, remembered)
        batch.generation = generation
        return batch

    def _settle(self, batch: list[_Waiting], result: Batch) -> list[_Waiting]:
        """Answer what was committed; return what another replica held."""
        left: list[_Waiting] = []
        for place, one in enumerate(batch):
            answer = result.answers.get(place)
            if answer is None:
                left.append(one)
            elif not one.answer.done():
                one.answer.set_result(answer)
        self._trouble_at = float("-inf")
        self._heard(result)
        return left

    def _heard(self, batch: Batch) -> None:
        self._memory.keep(batch.families, batch.instances, batch.generation)
        try:
            self._listener(batch)
        except Exception as error:
            # It is committed, whatever those who hear of it make of it.
            log.error("a listener broke", exc_info=error)

    def _too_old(self, one: _Waiting) -> bool:
        return self._closed or asyncio.get_running_loop().time() - one.since > GIVE_UP_S


def _fail(batch: Sequence[_Waiting], error: StokerError) -> None:
    for one in batch:
        if not one.answer.done():
            doubtful = one.doubtful and isinstance(error, Unavailable)
            one.answer.set_result(Answer(error=in_doubt(error) if doubtful else error))
