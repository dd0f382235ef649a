"""Schedules over restarts, held runs and changed policies in the rows of a real database."""

from dataclasses import replace

import pytest

from stoker.core.errors import Conflict
from stoker.core.run_facts import HoldAsked, PauseAsked, ReleaseAsked, Revised, TriggerAsked
from stoker.core.schedule import parse_schedule
from stoker.engine.change import Change, RunBirth, of_run
from stoker.engine.engine import Engine
from stoker.engine.placement import WAITING
from stoker.store import run as run_store
from stoker.store.database import Database
from stoker.store.run_spec import RunSpec
from tests.conftest import Databases
from tests.engine.conftest import ask, engine_with, eventually
from tests.engine.test_engine import PROJECT, Agents, host, run_of, until

YEARLY = parse_schedule("0 0 1 1 *")
MISSED = "UPDATE run SET trigger_at = trigger_at - $1, deadline_at = trigger_at - $1 WHERE id = $2"
ROUNDS = "SELECT count(*) FROM journal WHERE kind = 'run' AND note LIKE 'triggered%'"


async def born(engine: Engine, birth: RunBirth) -> RunBirth:
    await engine.commit(Change(runs=(birth,)))
    return birth


async def round_ended(db: Database, birth: RunBirth, number: int) -> None:
    async def ended() -> bool:
        row = await ask(db, "SELECT (round, state)::text FROM run WHERE id = $1", birth.run.id)
        return bool(row == f"({number},PENDING)")

    await eventually(ended, f"round {number} has ended")


async def test_a_trigger_that_was_missed_while_the_server_was_down_runs_once_on_return(database: Databases) -> None:
    """It was away for years of a yearly schedule."""
    performers = Agents().performers()
    async with database() as db:
        async with engine_with(db, performers, "a") as a:
            await a.commit(Change(instances=(host(a),)))
            birth = await born(a, run_of(a, "yearly", schedule=YEARLY))
            assert await until(db, birth.run.id, "PENDING") == "PENDING"
        await ask(db, MISSED, 3 * 366 * 86_400.0, birth.run.id)
        async with engine_with(db, performers, "b"):
            await round_ended(db, birth, 1)
        assert await ask(db, ROUNDS) == 1
        assert "late" in await ask(db, "SELECT note FROM journal WHERE note LIKE 'triggered%'")


async def test_a_restart_between_two_triggers_changes_nothing(database: Databases) -> None:
    performers = Agents().performers()
    async with database() as db:
        async with engine_with(db, performers, "a") as a:
            await a.commit(Change(instances=(host(a),)))
            birth = await born(a, run_of(a, "yearly", schedule=YEARLY))
            await a.commit(Change(facts=(of_run(birth.run.id, TriggerAsked()),)))
            await round_ended(db, birth, 1)
        kept = "SELECT (state, round, trigger_at, last_reason)::text FROM run"
        before = await ask(db, kept)
        async with engine_with(db, performers, "b") as b:
            looked = b.loops["timer"].passes

            async def passed() -> bool:
                b.wake("timer")
                return b.loops["timer"].passes > looked

            await eventually(passed, "the timer has looked")
            assert await ask(db, kept) == before
            await b.commit(Change(facts=(of_run(birth.run.id, TriggerAsked()),)))
            await round_ended(db, birth, 2)


async def test_a_pause_is_kept_over_a_restart(database: Databases) -> None:
    performers = Agents().performers()
    async with database() as db:
        async with engine_with(db, performers, "a") as a:
            birth = await born(a, run_of(a, "yearly", schedule=YEARLY))
            await a.commit(Change(facts=(of_run(birth.run.id, PauseAsked()),)))
        async with engine_with(db, performers, "b") as b, db.connection() as connection:
            run = await run_store.get(connection, birth.run.id)
            assert run.policy.schedule == replace(YEARLY, paused=True)
            assert await ask(db, "SELECT deadline_at FROM run") is None
            told = await b.commit(Change(facts=(of_run(birth.run.id, PauseAsked()),)))
            assert told.applied == (False,)


async def test_the_placer_does_not_look_at_held_runs(database: Databases) -> None:
    """Of a hundred that wait, one is not held: it is the only one that is planned for."""
    async with database() as db, engine_with(db, Agents(None).performers()) as engine:
        await engine.commit(Change(instances=(host(engine),)))
        await engine.commit(Change(runs=tuple(run_of(engine, f"h{n}", hold=True, priority=100) for n in range(99))))
        free = await born(engine, run_of(engine, "free"))
        assert await until(db, free.run.id, "RUNNING") == "RUNNING"
        async with db.connection() as connection:
            assert await connection.fetch(WAITING, 100) == []
        assert await ask(db, "SELECT count(*) FROM job WHERE state = 'SUBMITTED' AND instance_id IS NULL") == 99


async def test_holding_and_releasing_takes_a_run_out_of_the_queue_and_puts_it_back(database: Databases) -> None:
    async with database() as db, engine_with(db, Agents(None).performers()) as engine:
        birth = await born(engine, run_of(engine, "train"))
        await engine.commit(Change(facts=(of_run(birth.run.id, HoldAsked()),)))
        await engine.commit(Change(instances=(host(engine),)))
        await engine.placement.once()
        assert await until(db, birth.run.id, "SUBMITTED") == "SUBMITTED"
        await engine.commit(Change(facts=(of_run(birth.run.id, ReleaseAsked()),)))
        assert await until(db, birth.run.id, "RUNNING") == "RUNNING"


@pytest.mark.parametrize("replicas", [3, 100])
async def test_a_changed_policy_moves_the_deadline_of_every_job(database: Databases, replicas: int) -> None:
    """Also of a run that no commit loads whole."""
    async with database() as db, engine_with(db, Agents(None).performers()) as engine:
        birth = await born(engine, run_of(engine, "many", replicas=replicas, start_timeout_s=600.0))
        async with db.connection() as connection:
            run = await run_store.get(connection, birth.run.id)
        policy = replace(run.policy, start_timeout_s=900.0, priority=77)
        spec = RunSpec(run.id, PROJECT, "many", "ada", "task", "{}")
        change = Change(facts=(of_run(run.id, Revised(policy, run.version, "later")),), revised=(spec,), strict=True)
        with pytest.raises(Exception, match="run_spec_revise touched 0 rows"):
            # Nobody described this run, so there is nothing to describe anew: all of it or nothing.
            await engine.commit(change)
        await engine.commit(replace(change, revised=()))
        waits = "SELECT count(*) FROM job WHERE abs(deadline_at - submitted_at - 900) < 1e-3"
        assert await ask(db, waits) == replicas
        assert await ask(db, "SELECT priority FROM run WHERE (policy ->> 'priority')::int = 77") == 77
        with pytest.raises(Conflict):
            await engine.commit(replace(change, revised=()))


async def test_a_change_by_a_replica_is_known_to_the_other(database: Databases) -> None:
    """What a replica remembers of a run is not older than what it commits."""
    performers = Agents(None).performers()
    async with database() as db, engine_with(db, performers, "a") as a, engine_with(db, performers, "b") as b:
        birth = await born(a, run_of(a, "train", start_timeout_s=600.0))
        async with db.connection() as connection:
            run = await run_store.get(connection, birth.run.id)
        event = Revised(replace(run.policy, start_timeout_s=None), run.version)
        await b.commit(Change(facts=(of_run(run.id, event),)))
        await a.commit(Change(facts=(of_run(run.id, HoldAsked()),)))
        async with db.connection() as connection:
            policy = (await run_store.get(connection, run.id)).policy
        assert (policy.hold, policy.start_timeout_s) == (True, None)
        assert await ask(db, "SELECT deadline_at FROM job") is None
