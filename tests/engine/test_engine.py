"""A replica's engine at work, on a real PostgreSQL, with agents that answer at once."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker.core.block import Blocks
from stoker.core.errors import Conflict, NotFound
from stoker.core.family import found
from stoker.core.ids import InstanceId, JobId, ProjectId, RunId
from stoker.core.instance_facts import Destroy, Destroyed, Instance, Launch, Launched, ShimAnswered
from stoker.core.job_facts import (
    AskStop,
    CleanedUp,
    Cleanup,
    Exited,
    RemoveTask,
    RunnerAccepted,
    StartTask,
    SubmitJob,
    TaskAccepted,
)
from stoker.core.machine import Event
from stoker.core.policy import Policy
from stoker.core.resources import Capacity, Request
from stoker.core.run_facts import StopAsked
from stoker.engine.change import Change, Fact, RunBirth, of_instance, of_job, of_run
from stoker.engine.engine import Engine, Settings
from stoker.store import journal
from stoker.store.database import Database
from stoker.store.outbox import Errand
from tests.conftest import Databases

PROJECT = ProjectId(uuid4())


class Agents:
    """Performers that succeed; `exit_code` None leaves the program running until it is asked to stop."""

    def __init__(self, exit_code: int | None = 0) -> None:
        self.exit_code = exit_code
        self.engine: Engine | None = None
        self.performed: list[str] = []

    def performers(self) -> dict[Any, Any]:
        return {
            StartTask: self.answer(TaskAccepted),
            SubmitJob: self.submit,
            AskStop: self.stop,
            RemoveTask: self.answer(lambda **fence: CleanedUp(Cleanup.REMOVE, **fence)),
            Launch: self.launch,
            Destroy: self.destroy,
        }

    def answer(self, event: Callable[..., Event]) -> Any:
        async def perform(errand: Errand, effect: object) -> Change:
            self.performed.append(errand.effect)
            return Change(facts=(self.fact(errand, event(attempt=errand.attempt)),))

        return perform

    @staticmethod
    def fact(errand: Errand, event: Event) -> Fact:
        return of_job(JobId(errand.target), RunId(errand.family), event)

    async def submit(self, errand: Errand, effect: SubmitJob) -> Change:
        facts = [self.fact(errand, RunnerAccepted(attempt=errand.attempt))]
        if self.exit_code is not None:
            facts.append(self.fact(errand, Exited(self.exit_code, attempt=errand.attempt)))
        return Change(facts=tuple(facts))

    async def stop(self, errand: Errand, effect: AskStop) -> Change:
        return Change(facts=(self.fact(errand, Exited(143, signal=15, attempt=errand.attempt)),))

    async def launch(self, errand: Errand, effect: Launch) -> Change:
        id = InstanceId(errand.target)
        return Change(facts=(of_instance(id, Launched("here")), of_instance(id, ShimAnswered())))

    async def destroy(self, errand: Errand, effect: Destroy) -> Change:
        return Change(facts=(of_instance(InstanceId(errand.target), Destroyed()),))


@asynccontextmanager
async def engine_on(db: Database, agents: Agents, name: str = "a") -> AsyncIterator[Engine]:
    engine = Engine(db, Settings(name=name), agents.performers())
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def host(engine: Engine, cpu: int = 4) -> Instance:
    blocks = Blocks(Capacity(cpu=cpu, memory_mb=8192, disk_mb=10_000), cpu)
    now = engine.clock.now()
    return Instance(InstanceId(engine.new_id()), None, "local", blocks, entered_at=now, owned=True)


def run_of(engine: Engine, name: str = "r", **policy: Any) -> RunBirth:
    run = found(RunId(engine.new_id()), PROJECT, name, Policy(**policy), engine.clock.now())
    return RunBirth(run, Request())


async def until(db: Database, run_id: UUID, *states: str, deadline_s: float = 20.0) -> str:
    async with asyncio.timeout(deadline_s):
        while True:
            async with db.connection() as connection:
                state: str = await connection.fetchval("SELECT state FROM run WHERE id = $1", run_id)
            if state in states:
                return state
            await asyncio.sleep(0.005)


async def test_a_run_of_one_job_is_placed_runs_and_is_done(database: Databases) -> None:
    """The shortest whole life: nothing but commits and performers moves it along."""
    async with database() as db, engine_on(db, Agents()) as engine:
        await engine.commit(Change(instances=(host(engine),)))
        birth = run_of(engine)
        await engine.commit(Change(runs=(birth,)))
        assert await until(db, birth.run.id, "DONE", "FAILED") == "DONE"
        async with db.connection() as connection:
            story = await journal.story(connection, birth.run.id)
            assert await connection.fetchval("SELECT count(*) FROM outbox") == 0
            assert await connection.fetchval("SELECT state FROM instance") == "IDLE"
        states = [line.target for line in story if line.kind == "job" and line.source != line.target]
        assert states == ["SUBMITTED", "PROVISIONING", "PULLING", "RUNNING", "TERMINATING", "DONE"]
        runs = [line.target for line in story if line.kind == "run" and line.source != line.target]
        assert runs == ["SUBMITTED", "PROVISIONING", "RUNNING", "TERMINATING", "DONE"]


async def test_stop_ends_a_running_run_in_good_order(database: Databases) -> None:
    async with database() as db, engine_on(db, Agents(exit_code=None)) as engine:
        await engine.commit(Change(instances=(host(engine),)))
        birth = run_of(engine)
        await engine.commit(Change(runs=(birth,)))
        await until(db, birth.run.id, "RUNNING")
        await engine.commit(Change(facts=(of_run(birth.run.id, StopAsked(by="ann")),)))
        assert await until(db, birth.run.id, "TERMINATED", "FAILED") == "TERMINATED"
        async with db.connection() as connection:
            row = await connection.fetchrow("SELECT state, exit_signal, reason FROM job")
        assert row is not None
        assert tuple(row) == ("TERMINATED", 15, "TERMINATED_BY_USER")


async def test_a_name_is_taken_while_its_run_is_unfinished_and_only_the_second_fails(database: Databases) -> None:
    """Two people submit the same name at the same moment, together with others: one conflict, no collateral."""
    async with database() as db, engine_on(db, Agents()) as engine:
        births = [run_of(engine, name) for name in ("same", "other", "same", "third")]
        answers = await asyncio.gather(
            *(engine.commit(Change(runs=(birth,))) for birth in births), return_exceptions=True
        )
        assert [type(answer) for answer in answers].count(Conflict) == 1
        async with db.connection() as connection:
            assert await connection.fetchval("SELECT count(*) FROM run") == 3


async def test_a_birth_said_twice_is_one_run(database: Databases) -> None:
    """The answer to a submission was lost, and the client says it again."""
    async with database() as db, engine_on(db, Agents()) as engine:
        birth = run_of(engine)
        await engine.commit(Change(runs=(birth,)))
        await engine.commit(Change(runs=(birth,)))
        async with db.connection() as connection:
            assert await connection.fetchval("SELECT count(*) FROM job") == 1


async def test_news_of_an_unknown_run_says_so(database: Databases) -> None:
    async with database() as db, engine_on(db, Agents()) as engine:
        with pytest.raises(NotFound):
            await engine.commit(Change(facts=(of_run(RunId(uuid4()), StopAsked()),)))


async def test_many_runs_at_once_share_the_blocks_of_one_host(database: Databases) -> None:
    async with database() as db, engine_on(db, Agents()) as engine:
        await engine.commit(Change(instances=(host(engine, cpu=3),)))
        births = [run_of(engine, f"r{number}") for number in range(40)]
        await asyncio.gather(*(engine.commit(Change(runs=(birth,))) for birth in births))
        for birth in births:
            assert await until(db, birth.run.id, "DONE", "FAILED") == "DONE"
