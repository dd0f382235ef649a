"""Hints: who is woken after a commit, in this process and in the others."""

import asyncio
import time
from collections.abc import Callable
from uuid import uuid4

from stoker.core.block import Blocks
from stoker.core.commitment import Moved
from stoker.core.family import found
from stoker.core.ids import InstanceId, JobId, ProjectId, RunId
from stoker.core.instance_facts import Instance
from stoker.core.job_facts import Job, S
from stoker.core.policy import Policy
from stoker.core.resources import Capacity
from stoker.engine.change import Change
from stoker.engine.hint import PLACEMENT, Listener, hints
from stoker.store.database import Database
from tests.conftest import Databases
from tests.engine.conftest import NEVER_S, ask, engine_with, eventually
from tests.engine.test_engine import Agents, host, run_of, until

LISTENING = """
SELECT array_agg(pid) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'
"""


async def listeners(db: Database) -> set[int]:
    return set(await ask(db, LISTENING) or ())


async def listening(db: Database, met: Callable[[set[int]], bool], what: str) -> set[int]:
    async def happened() -> bool:
        return met(await listeners(db))

    await eventually(happened, what)
    return await listeners(db)


async def test_a_commit_of_one_replica_wakes_the_placement_of_another(database: Databases) -> None:
    """No period helps here: without the hint nothing would ever be placed."""
    async with (
        database() as db,
        engine_with(db, Agents().performers(), "a", without=[PLACEMENT]) as a,
        engine_with(db, Agents().performers(), "b") as b,
    ):
        await listening(db, lambda pids: len(pids) == 2, "both listen")
        await a.commit(Change(instances=(host(a),)))
        begun = time.monotonic()
        birth = run_of(a)
        await a.commit(Change(runs=(birth,)))
        assert await until(db, birth.run.id, "DONE", "FAILED") == "DONE"
        assert time.monotonic() - begun < 5.0 < NEVER_S
        assert b.loops[PLACEMENT].passes > 1


async def test_a_listener_that_was_cut_off_listens_again(database: Databases) -> None:
    async with (
        database() as db,
        engine_with(db, Agents().performers(), "a", without=[PLACEMENT]) as a,
        engine_with(db, Agents().performers(), "b"),
    ):
        before = await listening(db, lambda pids: len(pids) == 2, "both listen")
        await ask(db, "SELECT count(pg_terminate_backend(pid)) FROM unnest($1::int[]) AS pid", list(before))
        await listening(db, lambda pids: len(pids - before) == 2, "both listen again")
        await a.commit(Change(instances=(host(a),)))
        birth = run_of(a)
        await a.commit(Change(runs=(birth,)))
        assert await until(db, birth.run.id, "DONE", "FAILED") == "DONE"


async def test_what_was_said_while_nobody_listened_is_looked_for(database: Databases) -> None:
    """A run is submitted on one replica while the other, which places, is cut off."""
    async with (
        database() as db,
        engine_with(db, Agents().performers(), "a", without=[PLACEMENT], listens=False) as a,
        engine_with(db, Agents().performers(), "b"),
    ):
        before = await listening(db, lambda pids: len(pids) == 1, "one listens")
        await a.commit(Change(instances=(host(a),)))
        await eventually(lambda: ask(db, "SELECT state = 'IDLE' FROM instance"), "the host is up")
        await ask(db, "SELECT count(pg_terminate_backend(pid)) FROM unnest($1::int[]) AS pid", list(before))
        await listening(db, lambda pids: not pids, "nobody listens")
        birth = run_of(a)
        await a.commit(Change(runs=(birth,)))
        assert await until(db, birth.run.id, "DONE", "FAILED") == "DONE"


async def test_nobody_is_woken_by_its_own_voice(database: Databases) -> None:
    woken: list[str] = []
    async with database() as db:
        listener = Listener(db, lambda: 7, woken.append)
        task = asyncio.create_task(listener.run())
        await listening(db, lambda pids: len(pids) == 1, "it listens")
        woken.clear()
        for words in ("7 placement", "8 managed", "9 placement managed"):
            await ask(db, "SELECT pg_notify('stoker', $1)", words)

        async def heard() -> bool:
            return len(woken) >= 3

        await eventually(heard, "the others are heard")
        assert woken == ["managed", "placement", "managed"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await listening(db, lambda pids: not pids, "its connection is closed")


def test_placement_is_told_of_jobs_that_wait_and_of_room_that_opens() -> None:
    run_id = RunId(uuid4())
    run = found(run_id, ProjectId(uuid4()), "r", Policy(), 0.0)
    instance = Instance(InstanceId(uuid4()), None, "local", Blocks(Capacity(cpu=1, memory_mb=1, disk_mb=1), 1))

    def told(state: S) -> frozenset[str]:
        job = Job(JobId(uuid4()), run_id, 0, 0, 1, Policy(), 0.0, state=state)
        return hints([Moved("job", None, job, None, None)])

    assert told(S.SUBMITTED) == told(S.DONE) == told(S.FAILED) == {PLACEMENT}
    assert told(S.PULLING) == told(S.RUNNING) == told(S.TERMINATING) == frozenset()
    assert hints([Moved("instance", None, instance, None, None)]) == {PLACEMENT}
    assert hints([Moved("run", None, run, None, None)]) == frozenset()
