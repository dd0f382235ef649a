"""What is too old is forgotten, page by page, and nothing else."""

import asyncio

import pytest

from stoker.engine import retention as module
from stoker.engine.change import Change
from stoker.engine.retention import Retention
from tests.conftest import Databases
from tests.engine.test_engine import Agents, engine_on, run_of


async def test_old_entries_of_the_journal_are_forgotten_and_young_ones_stay(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has run for a year keeps the story of the last months."""
    monkeypatch.setattr(module, "FORGOTTEN_AT_ONCE", 256)
    async with database() as db, engine_on(db, Agents()) as engine:
        births = [run_of(engine, f"r{number}") for number in range(200)]
        await asyncio.gather(*(engine.commit(Change(runs=(birth,))) for birth in births))
        old = engine.clock.now() - 1000.0
        async with db.transaction() as tx:
            await tx.execute("UPDATE journal SET at = $1 WHERE family <> $2", old, births[0].run.id)
        retention = Retention(db, engine.clock, kept_s=900.0)
        passes = [await retention.once() for _ in range(3)]
        async with db.connection() as connection:
            left = await connection.fetch("SELECT DISTINCT family FROM journal")
    assert [counts.did for counts in passes] == [256, 398 - 256, 0]
    assert [row["family"] for row in left] == [births[0].run.id]
