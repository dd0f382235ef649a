"""Two engines on one database, and one of them dies, freezes, stops or comes back."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stoker.core.job_facts import StartTask, TaskAccepted
from stoker.core.machine import Effect
from stoker.engine import replica as replica_module
from stoker.engine.change import Change, RunBirth
from stoker.engine.engine import Engine
from stoker.engine.errand import Performer
from stoker.store import journal
from stoker.store.database import Connection, ConnectionLost, Database
from stoker.store.outbox import Errand
from tests.conftest import Databases
from tests.engine.conftest import ask, die, engine_with, eventually, eventually_passes
from tests.engine.test_engine import Agents, host, run_of, until


class Stuck(Agents):
    """A shim that takes the order and answers when `free` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.free = asyncio.Event()
        self.orders: list[Errand] = []

    def performers(self) -> dict[type[Effect], Performer]:
        return super().performers() | {StartTask: self.start}

    async def start(self, errand: Errand, effect: StartTask) -> Change:
        self.orders.append(errand)
        await self.free.wait()
        return Change(facts=(self.fact(errand, TaskAccepted(attempt=errand.attempt)),))


class Prompt(Stuck):
    """Notes its orders too, and answers at once."""

    def __init__(self) -> None:
        super().__init__()
        self.free.set()


async def submit(engine: Engine, count: int = 1) -> list[RunBirth]:
    births = [run_of(engine, f"run-{number}") for number in range(count)]
    await engine.commit(Change(instances=(host(engine, cpu=32),)))
    await asyncio.gather(*(engine.commit(Change(runs=(birth,))) for birth in births))
    return births


async def all_done(db: Database, births: Sequence[RunBirth]) -> None:
    for birth in births:
        assert await until(db, birth.run.id, "DONE", "FAILED") == "DONE"


async def started(agents: Stuck, count: int = 1) -> None:
    async def happened() -> bool:
        return len(agents.orders) >= count

    await eventually(happened, f"{count} orders are under way")


async def test_the_errands_of_a_dead_replica_are_taken_over_in_time_and_not_before(database: Databases) -> None:
    dead_after_s, beat_s = 0.6, 0.1
    stuck, prompt = Stuck(), Prompt()
    async with database() as db, engine_with(db, stuck.performers(), "a", heartbeat_s=beat_s) as a:
        births = await submit(a, 3)
        await started(stuck, 3)
        async with engine_with(db, prompt.performers(), "b", heartbeat_s=beat_s, dead_after_s=dead_after_s):
            await eventually_passes(dead_after_s * 1.5)
            assert prompt.orders == [], "a living replica was robbed"
            await die(a)
            died = time.monotonic()
            await started(prompt)
            taken_s = time.monotonic() - died
            await all_done(db, births)
        assert dead_after_s - 2 * beat_s <= taken_s <= dead_after_s + beat_s + 1.0
        assert {order.target for order in prompt.orders} == {order.target for order in stuck.orders}
        assert await ask(db, "SELECT count(*) FROM outbox") == 0


async def test_a_replica_that_was_frozen_begins_anew_and_its_late_orders_have_a_lower_fence(
    database: Databases,
) -> None:
    """Its machine was suspended for a while; the others gave it up, and it knows nothing of it."""
    frozen, prompt = Stuck(), Prompt()
    async with database() as db, engine_with(db, frozen.performers(), "a") as a:
        births = await submit(a)
        await started(frozen)
        epoch = a.replica.epoch
        async with engine_with(db, prompt.performers(), "b", heartbeat_s=0.05, dead_after_s=0.3) as b:
            await all_done(db, births)
            assert (await a.replica.once()).did == 1
            assert a.replica.epoch > b.replica.epoch > epoch
            assert a.committer.owner == a.replica.epoch
            frozen.free.set()
            await a.errands.settle(10)
            # It is one of the living again, with work of its own.
            more = run_of(a, "more")
            await a.commit(Change(runs=(more,)))
            await all_done(db, [more])
        (late,), (order, *_) = frozen.orders[:1], prompt.orders
        assert late.target == order.target and late.fence < order.fence
        async with db.connection() as connection:
            story = await journal.story(connection, births[0].run.id)
        assert Counter(line.event for line in story)["TaskAccepted"] == 1


async def test_a_replica_that_stops_hands_its_work_back_at_once(database: Databases) -> None:
    """Nobody has to wait until it counts as dead: it says that it leaves."""

    async def away(errand: Errand, effect: Any) -> Change:
        raise OSError("no route to host")

    prompt = Prompt()
    async with database() as db, engine_with(db, prompt.performers(), "b", heartbeat_s=0.1, without=["placement"]):
        async with engine_with(db, Agents().performers() | {StartTask: away}, "a", period_s=0.1) as a:
            births = await submit(a)
            await eventually(lambda: ask(db, "SELECT count(*) FROM outbox WHERE error <> ''"), "its shim is away")
            assert prompt.orders == []
        await all_done(db, births)
        assert len(prompt.orders) == 1


async def test_a_restarted_process_takes_up_its_own_errands_at_once(database: Databases) -> None:
    """`kill -9` and start again under the same name: nobody else could be using it, so there is nothing to wait for."""
    stuck, prompt = Stuck(), Prompt()
    async with database() as db, engine_with(db, stuck.performers(), "a") as first:
        births = await submit(first, 5)
        await started(stuck, 5)
        await die(first)
        async with engine_with(db, prompt.performers(), "a") as second:
            await all_done(db, births)
            assert second.replica.epoch > first.replica.epoch
        assert min(order.fence for order in prompt.orders) > max(order.fence for order in stuck.orders)


async def test_more_errands_than_are_adopted_at_once(database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_module, "ADOPTED_AT_ONCE", 3)
    stuck, prompt = Stuck(), Prompt()
    async with database() as db, engine_with(db, stuck.performers(), "a") as a:
        births = await submit(a, 10)
        await started(stuck, 10)
        await die(a)
        async with engine_with(db, prompt.performers(), "b", heartbeat_s=0.5, dead_after_s=0.1):
            await all_done(db, births)
        assert len({order.target for order in prompt.orders}) == 10


async def test_two_living_replicas_share_the_work_and_do_nothing_twice(database: Databases) -> None:
    one, two = Prompt(), Prompt()
    async with (
        database() as db,
        engine_with(db, one.performers(), "a", heartbeat_s=0.1) as a,
        engine_with(db, two.performers(), "b", heartbeat_s=0.1) as b,
    ):
        births = await submit(a, 20)
        more = [run_of(b, f"more-{number}") for number in range(20)]
        await asyncio.gather(*(b.commit(Change(runs=(birth,))) for birth in more))
        await all_done(db, births + more)
        orders = Counter(order.target for order in one.orders + two.orders)
        assert len(orders) == 40 and set(orders.values()) == {1}


class Doubtful:
    """A database whose second answer is lost after the commit has happened."""

    def __init__(self, db: Database) -> None:
        self.db, self.answers = db, 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Connection]:
        async with self.db.transaction() as tx:
            yield tx
        self.answers += 1
        if self.answers == 2:
            raise ConnectionLost("cut off", outcome_unknown=True)


async def test_a_registration_in_doubt_is_not_an_epoch(database: Databases) -> None:
    """The COMMIT of the registration was cut off after it had happened: the next beat registers again, and the
    committer and the errands go by the same epoch. (Simulation seed 322: the errands were nobody's.)"""
    async with database() as db, engine_with(db, Agents().performers(), "a", without=["replica"]) as engine:
        before = engine.replica.epoch
        async with db.transaction() as tx:
            await tx.execute("DELETE FROM replica")
        engine.replica._database = Doubtful(db)  # type: ignore[assignment]
        with pytest.raises(ConnectionLost):
            await engine.replica.once()
        assert engine.replica.epoch == engine.committer.owner == before
        await engine.replica.once()
        assert engine.replica.epoch == engine.committer.owner > before
        assert await ask(db, "SELECT array_agg(epoch) FROM replica") == [engine.replica.epoch]
