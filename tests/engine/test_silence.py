"""Limits on silence count for a server that was there to hear: one that comes back gives a full new period."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

from stoker.core.ids import InstanceId
from stoker.core.instance_facts import Heard, Silent
from stoker.core.job_facts import Silent as JobSilent
from stoker.core.limits import PROVIDER_SILENCE_S
from stoker.engine.change import Change, of_instance, of_job
from stoker.engine.engine import Engine
from stoker.store.database import Database
from tests.conftest import Databases
from tests.engine.conftest import ask, engine_with, eventually, eventually_passes
from tests.engine.test_engine import Agents, host, run_of, until

STATE = "SELECT state FROM instance"
UP = "SELECT count(*) FROM instance WHERE state = 'IDLE'"


@asynccontextmanager
async def silent_machine(db: Database) -> AsyncIterator[tuple[Engine, InstanceId]]:
    """A provider's machine, silent for longer than its limit when the server comes back."""
    async with engine_with(db, Agents(exit_code=None).performers()) as engine:
        machine = replace(host(engine), owned=False)
        await engine.commit(Change(instances=(machine,)))
        await eventually(lambda: ask(db, UP), "the machine is up")
        await engine.commit(Change(facts=(of_instance(machine.id, Silent()),)))
        await age(db, machine.id)
        engine.wake("timer")
        yield engine, machine.id


async def age(db: Database, id: UUID) -> None:
    """As if it had been silent since long ago."""
    async with db.transaction() as tx:
        for table in ("instance", "job"):
            await tx.execute(
                f"UPDATE {table} SET unreachable_since = unreachable_since - 2 * $2::float8,"
                " deadline_at = unreachable_since - 2 * $2 + $2 WHERE id = $1",
                id, PROVIDER_SILENCE_S,
            )  # fmt: skip


async def test_a_machine_that_was_silent_before_a_restart_has_a_full_new_period(database: Databases) -> None:
    """Nobody was there to hear it: now it has the time to be heard, and the timer does not spin meanwhile."""
    async with database() as db, silent_machine(db) as (engine, id):
        passes = engine.loops["timer"].passes
        await eventually_passes(0.5)
        assert await ask(db, STATE) == "IDLE"
        assert engine.loops["timer"].passes - passes < 10
        await engine.commit(Change(facts=(of_instance(id, Heard()),)))
        assert await ask(db, "SELECT deadline_at IS NULL FROM instance")


async def test_a_server_that_was_there_all_the_time_gives_a_silent_machine_up(database: Databases) -> None:
    async with database() as db, silent_machine(db) as (engine, _):
        engine.replica.presence.since -= PROVIDER_SILENCE_S
        engine.wake("timer")
        await eventually(lambda: ask(db, "SELECT state = 'TERMINATED' FROM instance"), "the machine is given up")
        assert await ask(db, "SELECT message FROM instance") == "unreachable for 1200 s"


async def test_a_silent_job_has_its_new_period_too_and_no_longer_duration(database: Databases) -> None:
    """Silence that nobody could have ended is forgiven; the maximum that the user set counts from the start."""
    async with database() as db, engine_with(db, Agents(exit_code=None).performers()) as engine:
        await engine.commit(Change(instances=(replace(host(engine), owned=False),)))
        births = [run_of(engine, "silent"), run_of(engine, "short", max_duration_s=0.5)]
        for birth in births:
            await engine.commit(Change(runs=(birth,)))
            await until(db, birth.run.id, "RUNNING")
            job = await ask(db, "SELECT id FROM job WHERE run_id = $1", birth.run.id)
            await engine.commit(Change(facts=(of_job(job, birth.run.id, JobSilent(attempt=1)),)))
        await age(db, await ask(db, "SELECT id FROM job WHERE run_id = $1", births[0].run.id))
        engine.wake("timer")
        assert await until(db, births[1].run.id, "TERMINATED", "FAILED") == "TERMINATED"
        assert await until(db, births[0].run.id, "RUNNING", "TERMINATING") == "RUNNING"
        engine.replica.presence.since -= PROVIDER_SILENCE_S
        engine.wake("timer")
        assert await until(db, births[0].run.id, "FAILED", "TERMINATED") == "FAILED"
        assert await ask(db, "SELECT reason FROM job WHERE run_id = $1", births[0].run.id) == "INSTANCE_UNREACHABLE"
