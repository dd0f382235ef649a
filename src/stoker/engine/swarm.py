"""The engine's door to the swarm: each act is one transaction over the set-based SQL of `store/`.

Tasks do not go through `commit`: a million of them change by sets (architecture §3). Two transactions may meet
head on (`store/continuation.py` says when); PostgreSQL ends one of them, and that one is said again here.

A lease is over only when somebody was there to renew it. What the other replicas did nobody can know afterwards (they
may have died one after the other, each after a moment), so a replica takes tasks away only when it was there itself
for a whole lease: one that comes back, was frozen or had no database gives each worker a full new period.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

import asyncpg
import structlog

from stoker.core.errors import Unavailable
from stoker.core.graph import Edge, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.phrase import counted
from stoker.core.task import State
from stoker.engine.clock import Clock
from stoker.engine.kinds import Kinds
from stoker.engine.loop import Counts
from stoker.engine.presence import Presence
from stoker.store import claim as claims
from stoker.store import continuation, journal, report, sample, task, task_kind, worker
from stoker.store.bundle import Bundle
from stoker.store.claim import Ask, Work
from stoker.store.continuation import PLAN_AFRESH, Opened
from stoker.store.database import Connection, Database
from stoker.store.many import Many
from stoker.store.report import End
from stoker.store.sample import Sample
from stoker.store.task import Cancelled, Draft
from stoker.store.worker import Beat, Expired, Profile

LEASE_S: Final = 60.0
AWAY_AFTER_S: Final = 15.0
"""No pass of the loop for so long: workers may have found nobody here."""
MOST_TRIES: Final = 5
"""Of a transaction that PostgreSQL ended in favour of another."""
AT_ONCE: Final = 1_000
"""Tasks whose moment has come, in one transaction."""

T = TypeVar("T")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Word:
    """What one worker says in one breath. It may all be said again: news names the attempt, claims have numbers."""

    worker: WorkerId
    ends: Sequence[End] = ()
    unstarted: Sequence[Held] = ()
    started: Sequence[tuple[Held, float]] = ()
    samples: Sequence[Sample] = ()
    ask: Ask | None = None


class Heard(NamedTuple):
    """The answer to a word. `known`: the worker is registered; otherwise nothing of it was done."""

    known: bool
    refused: list[tuple[Held, State | None]]
    works: list[Work]


class Swarm:
    """Its loop is `expire_once`; the other acts are requests of users and workers.

    Each raises what stopped it, and then nothing of it happened, except after `ConnectionLost` with
    `outcome_unknown`. A worker may say everything again: its news names the attempt, its claims have numbers.
    """

    def __init__(
        self, database: Database, clock: Clock, lease_s: float = LEASE_S, away_after_s: float = AWAY_AFTER_S
    ) -> None:
        self._database, self._clock, self.lease_s = database, clock, lease_s
        self._presence = Presence(away_after_s)
        self.kinds = Kinds()
        self.opened: Callable[[Opened], None] = lambda opened: None
        """Told, after the commit, what can be claimed because of it."""
        self.cancelled: Callable[[Sequence[tuple[WorkerId, Held]]], None] = lambda told: None
        """Told, after the commit, which worker must stop what."""

    async def create(self, drafts: Collection[Draft], edges: Collection[Edge] = (), *, by: str = "") -> int:
        """Stores a whole graph or nothing. Returns how many tasks can be claimed because of it."""

        async def act(tx: Connection, now: float) -> Opened:
            opened = await task.create(tx, drafts, edges, now)
            for first in list(drafts)[:1]:
                await self.note_created(tx, first.id, first.project, len(drafts), len(edges), by, now)
            return opened

        return await self._opening(act)

    async def note_created(
        self, tx: Connection, first: TaskId, project: ProjectId, tasks: int, edges: int, by: str, now: float
    ) -> None:
        note = f"{counted(tasks, 'task')}, {counted(edges, 'continuation')}"
        await _journal(tx, first, project, "Created", "available", note, by, now)

    async def note_retried(
        self, tx: Connection, first: TaskId, project: ProjectId, tasks: int, released: int, by: str, now: float
    ) -> None:
        note = f"{tasks} done again, {released} held ones may be claimed"
        await _journal(tx, first, project, "RetryAsked", "available", note, by, now)

    async def load(self, act: Callable[[Connection, float], Awaitable[Opened]], *, again: bool) -> int:
        """A whole graph. Not `again` where it is stored while it comes: what came cannot be said again here."""
        opened = await self._transact(act, MOST_TRIES if again else 1)
        self._tell(opened)
        return opened.count

    async def make_available(self, ids: Collection[TaskId]) -> int:
        return await self._opening(lambda tx, now: task.make_available(tx, ids, now))

    async def let_go(self, ids: Collection[TaskId]) -> int:
        """What was held as poison may be claimed again."""
        return await self._opening(lambda tx, now: task.let_go(tx, ids))

    async def cancel(
        self,
        ids: Collection[TaskId] | Many,
        *,
        by: str = "",
        project: ProjectId | None = None,
        event: str = "CancelAsked",
    ) -> Cancelled:
        """Accepted at once in any state; workers are told over their sockets, and by the answer to their heartbeats."""
        asked = ids if isinstance(ids, Many) else Many.of(ids)

        async def act(tx: Connection, now: float) -> Cancelled:
            done = await task.cancel(tx, asked, now)
            if asked.first is not None and (done.cancelled or done.told):
                note = f"{asked.count} asked for, {done.cancelled} cancelled, {len(done.told)} still running"
                await _journal(tx, asked.first, project or asked.first, event, "cancelled", note, by, now)
            return done

        done = await self._transact(act)
        if done.told:
            self.cancelled(done.told)
        return done

    async def add_continuations(self, edges: Collection[Edge]) -> None:
        await self._transact(lambda tx, now: continuation.add_continuations(tx, edges))

    async def remove_continuations(self, edges: Collection[Edge]) -> int:
        """Returns how many tasks can be claimed because of it."""
        return await self._opening(lambda tx, now: continuation.remove_continuations(tx, edges, now))

    async def register(self, id: WorkerId, project: ProjectId, profile: Profile) -> None:
        await self._transact(lambda tx, now: worker.register(tx, id, project, profile, self.lease_s, now))

    async def leave(self, id: WorkerId, *, lost: bool = False) -> int:
        return await self._opening(lambda tx, now: worker.leave(tx, id, now, lost=lost))

    async def hear(self, words: Sequence[Word], waiting: Sequence[Ask] = ()) -> tuple[list[Heard], list[list[Work]]]:
        """What several workers say, in one transaction; and what those who wait get because of it."""

        async def act(tx: Connection, now: float) -> tuple[list[Heard], list[list[Work]], Opened]:
            await tx.execute(PLAN_AFRESH)
            asks = [word.ask for word in words if word.ask is not None] + list(waiting)
            speakers, standing = {word.worker for word in words}, {ask.worker for ask in waiting}
            known = await worker.renew(tx, speakers, self.lease_s, now, standing)
            words_known = [word for word in words if word.worker in known]
            refused, opened = await self._news(tx, words_known, now)
            self.kinds.open(opened.kinds)
            given = await self._claim(tx, [ask for ask in asks if ask.worker in known], known, now)
            heard = [_heard(word, word.worker in known, refused, given) for word in words]
            return heard, [given.get(id(ask), []) for ask in waiting], opened

        heard, served, opened = await self._transact(act)
        self._tell(opened)
        return heard, served

    async def _news(
        self, tx: Connection, words: Iterable[Word], now: float
    ) -> tuple[dict[tuple[WorkerId, Held], State | None], Opened]:
        words = list(words)
        back = await report.give_back(tx, [(word.worker, held) for word in words for held in word.unstarted], now)
        await report.started(tx, [(word.worker, *told) for word in words for told in word.started])
        await sample.sampled(tx, [(word.worker, one) for word in words for one in word.samples])
        ended = await report.report(tx, [(word.worker, end) for word in words for end in word.ends], now)
        return back.refused | ended.refused, back.opened | ended.opened

    async def _claim(
        self, tx: Connection, asks: Sequence[Ask], known: dict[WorkerId, ProjectId], now: float
    ) -> dict[int, list[Work]]:
        given: dict[int, list[Work]] = {}
        for project in dict.fromkeys(known[ask.worker] for ask in asks):
            own = [ask for ask in asks if known[ask.worker] == project]
            found = await claims.claim(tx, project, own, await self.kinds.waiting(tx, project), now)
            self.kinds.close(project, found.empty)
            given.update((id(ask), works) for ask, works in zip(own, found.works, strict=True))
        return given

    async def claim(self, id: WorkerId, n: int, number: int) -> list[Work]:
        """Whatever there is: for whoever has nothing to say of its room. `number`: see `store/worker.py`."""
        self.kinds.forget()
        (heard,), _ = await self.hear([Word(id, ask=Ask.anything(id, number, n))])
        if not heard.known:
            raise worker.unknown(id)
        return heard.works

    async def take(self, project: ProjectId, by: WorkerId, id: TaskId) -> Work | State | None:
        """The one that a worker has chosen itself."""

        async def act(tx: Connection, now: float) -> Work | State | None:
            if (await worker.renew(tx, [by], self.lease_s, now)).get(by) != project:
                raise worker.unknown(by)
            row = await tx.fetchrow("SELECT kind_id FROM task WHERE id = $1", id)
            kinds = await task_kind.read(tx, [row["kind_id"]]) if row else {}
            return await claims.take_one(tx, project, by, id, kinds, now)

        return await self._transact(act)

    async def report(self, id: WorkerId, ends: Sequence[End]) -> list[tuple[Held, State | None]]:
        return await self._said(Word(id, ends=ends))

    async def give_back(self, id: WorkerId, unstarted: Sequence[Held]) -> list[tuple[Held, State | None]]:
        return await self._said(Word(id, unstarted=unstarted))

    async def _said(self, word: Word) -> list[tuple[Held, State | None]]:
        """Returns what is not the worker's any more."""
        (heard,), _ = await self.hear([word])
        if not heard.known:
            raise worker.unknown(word.worker)
        return heard.refused

    async def heartbeat(self, id: WorkerId, listed: Collection[Held], number: int) -> Beat:
        beat = await self._transact(lambda tx, now: worker.heartbeat(tx, id, listed, self.lease_s, now, number))
        self._tell(beat.opened)
        return beat

    async def moments_once(self) -> Counts:
        """Tasks whose time has come may be claimed; those whose deadline has passed are cancelled."""
        async with self._database.connection() as connection:
            moment = await task.next_moment(connection)
        now = self._clock.now()
        if moment is None:
            return Counts()
        if moment > now:
            return Counts(again_after_s=moment - now)
        begun, opened = await self._transact(lambda tx, now: task.begin_due(tx, now, AT_ONCE))
        self._tell(opened)
        async with self._database.connection() as connection:
            late = await task.overdue(connection, now, AT_ONCE)
        for project, ids in late.items():
            await self.cancel(ids, project=project, event="DeadlinePassed")
        return Counts(begun + sum(map(len, late.values())), 0.0)

    async def expire_once(self) -> Counts:
        """Workers whose lease is over lose what they hold, and it moves on."""
        async with self._database.connection() as connection:
            end = await worker.next_lease_end(connection)
        now = self._clock.now()
        self._presence.seen(now)
        if end is None:
            return Counts()
        if (over_at := max(end, self._presence.since + self.lease_s)) > now:
            return Counts(again_after_s=over_at - now)
        lost = await self._transact(self._expire)
        self._tell(lost.opened)
        if lost.workers:
            log.info("workers were lost", workers=lost.workers, available=lost.available)
        return Counts(lost.workers, 0.0 if lost.workers == worker.EXPIRED_AT_ONCE else None)

    async def _expire(self, tx: Connection, now: float) -> Expired:
        if self._presence.away(now):
            # Frozen, or without a connection, since it looked.
            return Expired(0, Opened())
        return await worker.expire(tx, now)

    async def _opening(self, act: Callable[[Connection, float], Awaitable[Opened]]) -> int:
        opened = await self._transact(act)
        self._tell(opened)
        return opened.count

    def _tell(self, opened: Opened) -> None:
        if opened.count:
            self.kinds.open(opened.kinds)
            self.opened(opened)

    async def _transact(self, act: Callable[[Connection, float], Awaitable[T]], most_tries: int = MOST_TRIES) -> T:
        for tries in range(1, most_tries + 1):
            try:
                async with self._database.transaction() as tx:
                    return await act(tx, self._clock.now())
            except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError) as error:
                log.info("a transaction of the swarm gave way to another", tries=tries, error=str(error))
            if tries < most_tries:
                await asyncio.sleep(0.01 * tries)
        times = f" {most_tries} times in a row" if most_tries > 1 else ""
        raise Unavailable(
            f"Others changed the same tasks{times}.",
            hint="Nothing was changed; the same call may work now.",
            code="busy",
        )


def _heard(
    word: Word, known: bool, refused: dict[tuple[WorkerId, Held], State | None], given: dict[int, list[Work]]
) -> Heard:
    mine = [held for held in (*word.unstarted, *(end.held for end in word.ends)) if (word.worker, held) in refused]
    return Heard(known, [(held, refused[word.worker, held]) for held in mine], given.get(id(word.ask), []))


async def _journal(
    tx: Connection, id: TaskId, family: UUID, event: str, target: str, note: str, by: str, now: float
) -> None:
    """One entry a bulk act; what happens to a single task is told by its executions."""
    bundle = Bundle()
    journal.append(bundle, [journal.Entry("task", id, family, event, None, target, note, by, family)], now)
    await bundle.write(tx)
