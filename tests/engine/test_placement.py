"""The placer's eyes: which of many waiting gangs it looks at, and all of each."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import pytest

from stoker.core.gang import Gang, OnNoCapacity
from stoker.core.ids import ProjectId
from stoker.core.placement import Plan, plan
from stoker.engine import placement as module
from stoker.engine.change import Change, RunBirth
from stoker.engine.engine import Engine
from stoker.engine.hint import PLACEMENT
from stoker.store import host as host_store
from stoker.store.database import Database
from tests.conftest import Databases
from tests.engine.conftest import ask, engine_with, eventually
from tests.engine.test_engine import PROJECT, Agents, host, run_of, until

UP = "SELECT count(*) FROM instance WHERE state = 'IDLE'"
PLACED = "SELECT array_agg(DISTINCT run.name) FROM job JOIN run ON run.id = job.run_id WHERE instance_id IS NOT NULL"


@asynccontextmanager
async def placer(db: Database, hosts: int, cpu: int = 4) -> AsyncIterator[Engine]:
    """An engine that places when it is told to, with hosts that are up."""
    async with engine_with(db, Agents(exit_code=None).performers(), without=[PLACEMENT]) as engine:
        await engine.commit(Change(instances=tuple(host(engine, cpu) for _ in range(hosts))))

        async def up() -> bool:
            return bool(await ask(db, UP) == hosts)

        await eventually(up, "the hosts are up")
        yield engine


async def submit(engine: Engine, *births: RunBirth) -> None:
    await asyncio.gather(*(engine.commit(Change(runs=(birth,))) for birth in births))


async def test_a_gang_is_looked_at_whole_or_not_at_all(database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one gang in a pass: half of one would be placed alone, and its other half perhaps never."""
    monkeypatch.setattr(module, "FEW_GANGS", 1)
    monkeypatch.setattr(module, "MOST_GANGS", 1)
    async with database() as db, placer(db, hosts=2) as engine:
        await submit(engine, run_of(engine, "pair", nodes=2))
        await submit(engine, run_of(engine, "other", nodes=2))
        await engine.placement.once()
        assert await ask(db, PLACED) == ["pair"]
        assert await ask(db, "SELECT count(*) FROM job WHERE instance_id IS NOT NULL") == 2


async def test_an_urgent_run_is_not_hidden_behind_many_old_ones(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More old gangs wait than a pass looks at; one that came last has a higher priority, and room for one is left."""
    monkeypatch.setattr(module, "FEW_GANGS", 3)
    monkeypatch.setattr(module, "MOST_GANGS", 3)
    async with database() as db, placer(db, hosts=1, cpu=1) as engine:
        for number in range(5):
            await submit(engine, run_of(engine, f"old-{number}"))
        await submit(engine, run_of(engine, "urgent", priority=90))
        await engine.placement.once()
        assert await ask(db, PLACED) == ["urgent"]


async def test_of_equally_urgent_gangs_the_oldest_are_looked_at(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW_GANGS", 2)
    monkeypatch.setattr(module, "MOST_GANGS", 2)
    async with database() as db, placer(db, hosts=1) as engine:
        await submit(engine, run_of(engine, "lazy", priority=10))
        for name in ("first", "second", "third"):
            await submit(engine, run_of(engine, name))
        await engine.placement.once()
        assert await ask(db, PLACED) == ["first", "second"]


async def test_a_gang_that_cannot_be_placed_by_our_fault_keeps_nobody_else_waiting(database: Databases) -> None:
    """It would be the first in turn, and there is room for one: without it the room is the next one's."""
    async with database() as db, placer(db, hosts=1, cpu=1) as engine:
        async with db.transaction() as tx:
            await tx.execute("ALTER TABLE run ADD CHECK (name <> 'sick' OR state = 'SUBMITTED')")
        await submit(engine, run_of(engine, "sick", priority=90))
        await submit(engine, run_of(engine, "sound"))
        first = await engine.placement.once()
        assert (first.bugs, first.again_after_s is not None) == (1, True)

        async def placed() -> bool:
            await engine.placement.once()
            return bool(await ask(db, PLACED))

        await eventually(placed, "the other one is placed", deadline_s=5.0)
        assert await ask(db, PLACED) == ["sound"]


async def test_a_host_that_serves_one_project_takes_no_job_of_another(database: Databases) -> None:
    """Its agent runs without root and would refuse the job, which would then have failed instead of waiting."""
    async with database() as db, engine_with(db, Agents(exit_code=None).performers(), without=[PLACEMENT]) as engine:
        closed, mine = host(engine), host(engine)
        async with db.transaction() as tx:
            await host_store.put(tx, closed.id, host_store.Host("there", ""), ProjectId(uuid4()))
            await host_store.put(tx, mine.id, host_store.Host("there", ""), PROJECT)
        await engine.commit(Change(instances=(closed,)))
        first, second = run_of(engine, "first"), run_of(engine, "second", on_no_capacity=OnNoCapacity.FAIL)
        await submit(engine, first, second)
        await engine.placement.once()
        assert await ask(db, PLACED) is None
        assert await until(db, second.run.id, "FAILED") == "FAILED"
        assert "serves another one only" in await ask(db, "SELECT message FROM job WHERE run_id = $1", second.run.id)
        await engine.commit(Change(instances=(mine,)))
        await engine.placement.once()
        assert await ask(db, PLACED) == ["first"]
        assert await ask(db, "SELECT instance_id FROM job WHERE run_id = $1", first.run.id) == mine.id


async def test_behind_a_few_that_take_all_the_room_nobody_is_looked_at(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass over a full house costs the same however long the queue is."""
    looked: list[int] = []

    def counted(gangs: list[Gang], *rest: Any, **how: Any) -> Plan:
        looked.append(len(gangs))
        return plan(gangs, *rest, **how)

    monkeypatch.setattr(module, "FEW_GANGS", 3)
    monkeypatch.setattr(module, "plan", counted)
    async with database() as db, placer(db, hosts=1, cpu=2) as engine:
        for number in range(8):
            await submit(engine, run_of(engine, f"run-{number}"))
        await engine.placement.once()
        assert sorted(await ask(db, PLACED)) == ["run-0", "run-1"]
        await engine.placement.once()
        assert looked == [3, 3]


async def test_one_behind_the_first_few_is_found_when_it_is_the_one_that_fits(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW_GANGS", 2)
    async with database() as db, placer(db, hosts=1, cpu=2) as engine:
        for number in range(3):
            await submit(engine, run_of(engine, f"pair-{number}", nodes=2))
        await submit(engine, run_of(engine, "small"))
        await engine.placement.once()
        assert await ask(db, PLACED) == ["small"]


async def test_one_that_does_not_wait_is_told_at_once_however_many_do(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW_GANGS", 2)
    async with database() as db, placer(db, hosts=1, cpu=1) as engine:
        for number in range(4):
            await submit(engine, run_of(engine, f"run-{number}"))
        impatient = run_of(engine, "impatient", on_no_capacity=OnNoCapacity.FAIL)
        await submit(engine, impatient)
        await engine.placement.once()
        assert await until(db, impatient.run.id, "FAILED", "RUNNING") == "FAILED"
