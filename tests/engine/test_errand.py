"""Errands that fail, that nobody wants any more, and that are too many."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stoker.core.errors import Unavailable
from stoker.core.job_facts import StartTask, SubmitJob, TaskAccepted
from stoker.core.run_facts import StopAsked
from stoker.engine import engine as engine_module
from stoker.engine import errand as module
from stoker.engine.change import Change, of_run
from stoker.engine.engine import Engine
from stoker.store.database import Database, Record
from stoker.store.outbox import Errand
from tests.conftest import Databases
from tests.engine.conftest import NEVER_S, ask, engine_with, eventually
from tests.engine.test_engine import Agents, host, run_of, until


class Failing(Agents):
    """A shim that fails the first orders with the given errors."""

    def __init__(self, *errors: Exception) -> None:
        super().__init__()
        self.errors = list(errors)
        self.at: list[float] = []
        self.tries: list[int] = []

    def performers(self) -> dict[Any, Any]:
        return super().performers() | {StartTask: self.start}

    async def start(self, errand: Errand, effect: StartTask) -> Change:
        self.at.append(asyncio.get_running_loop().time())
        self.tries.append(errand.tries)
        if self.errors:
            raise self.errors.pop(0)
        return Change(facts=(self.fact(errand, TaskAccepted(attempt=errand.attempt)),))


class Slow(Agents):
    """A shim that takes its time with the order, until `free` is set."""

    def __init__(self) -> None:
        super().__init__(exit_code=None)
        self.called, self.free = asyncio.Event(), asyncio.Event()
        self.submitted = 0
        self.ended = False

    def performers(self) -> dict[Any, Any]:
        return super().performers() | {StartTask: self.start}

    async def start(self, errand: Errand, effect: StartTask) -> Change:
        self.called.set()
        try:
            await self.free.wait()
        finally:
            self.ended = True
        return Change(facts=(self.fact(errand, TaskAccepted(attempt=errand.attempt)),))

    async def submit(self, errand: Errand, effect: SubmitJob) -> Change:
        self.submitted += 1
        await asyncio.sleep(NEVER_S)
        return Change()

    @staticmethod
    def stopping(engine: Engine) -> Callable[[], Awaitable[bool]]:
        async def looked() -> bool:
            return all(task.done() for task in engine._tasks)

        return looked


async def wish(db: Database) -> Record | None:
    async with db.connection() as connection:
        return await connection.fetchrow("SELECT effect, tries, error, due_at - made_at AS late_s FROM outbox")


async def test_what_fails_is_tried_again_with_a_growing_delay_and_shown_meanwhile(database: Databases) -> None:
    agents = Failing(OSError("no route to host"), RuntimeError("out of luck"), OSError("no route to host"))
    async with database() as db, engine_with(db, agents.performers()) as engine:
        await engine.commit(Change(instances=(host(engine),)))
        birth = run_of(engine)
        await engine.commit(Change(runs=(birth,)))
        await eventually(lambda: ask(db, "SELECT true FROM outbox WHERE tries = 2"), "it failed twice")
        seen = await wish(db)
        assert seen is not None and (seen["effect"], seen["error"]) == ("StartTask", "out of luck")
        assert await until(db, birth.run.id, "DONE", "FAILED") == "DONE"
        delays = [after - before for before, after in zip(agents.at, agents.at[1:], strict=False)]
        assert agents.tries == [0, 1, 2, 3]
        for delay, least in zip(delays, (0.25, 0.5, 1.0), strict=True):
            assert least * 0.95 <= delay <= least + 1.0
        assert await ask(db, "SELECT count(*) FROM outbox") == 0


async def test_who_says_when_to_come_again_is_heard(database: Databases) -> None:
    agents = Failing(Unavailable("The provider is busy.", retry_after_s=0.7))
    async with database() as db, engine_with(db, agents.performers()) as engine:
        await engine.commit(Change(instances=(host(engine),)))
        birth = run_of(engine)
        await engine.commit(Change(runs=(birth,)))
        await until(db, birth.run.id, "DONE")
        assert agents.at[1] - agents.at[0] >= 0.7 * 0.95


async def test_a_wish_that_is_no_longer_current_is_dropped_when_its_turn_comes_again(database: Databases) -> None:
    """The shim did not answer, then the user stopped the run: the task must not start after all."""
    agents = Failing(OSError("no route to host"))
    async with database() as db, engine_with(db, agents.performers()) as engine:
        await engine.commit(Change(instances=(host(engine),)))
        birth = run_of(engine)
        await engine.commit(Change(runs=(birth,)))
        await eventually(lambda: ask(db, "SELECT true FROM outbox WHERE tries = 1"), "it failed once")
        await engine.commit(Change(facts=(of_run(birth.run.id, StopAsked()),)))
        assert await until(db, birth.run.id, "TERMINATED", "FAILED") == "TERMINATED"
        await eventually(lambda: ask(db, "SELECT count(*) = 0 FROM outbox"), "the wish is dropped")
        assert len(agents.at) == 1


async def test_an_errand_that_nobody_can_perform_is_shown(database: Databases) -> None:
    performers = Agents().performers()
    del performers[StartTask]
    async with database() as db, engine_with(db, performers) as engine:
        await engine.commit(Change(instances=(host(engine),)))
        await engine.commit(Change(runs=(run_of(engine),)))
        await eventually(lambda: ask(db, "SELECT error LIKE '%StartTask%' FROM outbox"), "it says what is missing")


async def test_more_errands_than_may_fly_at_once(database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest stays in the outbox, and its turn comes without waiting for a period."""
    monkeypatch.setattr(module, "MOST_ERRANDS", 4)
    flying, most = 0, 0

    def counted(perform: Callable[..., Any]) -> Callable[..., Any]:
        async def performing(errand: Errand, effect: Any) -> Change:
            nonlocal flying, most
            flying += 1
            most = max(most, flying)
            await asyncio.sleep(0.01)
            flying -= 1
            change: Change = await perform(errand, effect)
            return change

        return performing

    performers = {effect: counted(perform) for effect, perform in Agents().performers().items()}
    async with database() as db, engine_with(db, performers) as engine:
        await engine.commit(Change(instances=(host(engine, cpu=32),)))
        births = [run_of(engine, f"r{number}") for number in range(20)]
        await asyncio.gather(*(engine.commit(Change(runs=(birth,))) for birth in births))
        for birth in births:
            assert await until(db, birth.run.id, "DONE", "FAILED") == "DONE"
        assert most == 4
        await eventually(lambda: ask(db, "SELECT count(*) = 0 FROM outbox"), "nothing is left")


async def test_a_stop_begins_nothing_new_and_leaves_nothing_behind(database: Databases) -> None:
    """What is under way ends, and what follows from it is left to the next server: it would outlive this one."""
    agents = Slow()
    async with database() as db:
        async with engine_with(db, agents.performers()) as engine:
            await engine.commit(Change(instances=(host(engine),)))
            await engine.commit(Change(runs=(run_of(engine),)))
            await agents.called.wait()
            stop = asyncio.create_task(engine.stop())
            await eventually(agents.stopping(engine), "the engine is stopping")
            agents.free.set()
            await stop
            assert await ask(db, "SELECT state FROM job") == "PULLING", "what was under way has ended"
            assert (engine.errands.flying, agents.submitted) == (0, 0)
        assert await ask(db, "SELECT array_agg(effect) FROM outbox") == ["SubmitJob"]


async def test_what_takes_too_long_is_ended_by_a_stop(database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "STOP_S", 0.05)
    agents = Slow()
    async with database() as db:
        async with engine_with(db, agents.performers()) as engine:
            await engine.commit(Change(instances=(host(engine),)))
            await engine.commit(Change(runs=(run_of(engine),)))
            await agents.called.wait()
            await engine.stop()
            assert (engine.errands.flying, agents.ended) == (0, True)
        assert await ask(db, "SELECT array_agg(effect) FROM outbox") == ["StartTask"]
