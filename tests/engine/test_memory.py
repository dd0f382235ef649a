"""What is remembered saves questions, and is never believed over what the database has."""

import asyncio
import os
import random
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from stoker.core.block import Blocks
from stoker.core.errors import Conflict
from stoker.core.ids import InstanceId, JobId, RunId
from stoker.core.instance_facts import Instance, Launched, ShimAnswered
from stoker.core.job_facts import CleanedUp, Cleanup, Exited, Placed, RunnerAccepted, TaskAccepted
from stoker.core.machine import Event
from stoker.core.reason import RetryEvent
from stoker.core.resources import Capacity
from stoker.core.retry import Retry
from stoker.core.run_facts import StopAsked
from stoker.engine import commit as module
from stoker.engine.change import Change, of_instance, of_job, of_run
from stoker.engine.memory import MOST_JOBS_OF_ONE, Memory
from stoker.store.database import Connection, ConnectionLost, Database
from stoker.store.postgres import Embedded
from tests.conftest import Databases
from tests.engine.conftest import ask, eventually
from tests.engine.desk import Desk, desk_on, run_of

CAPACITY = Capacity(cpu=8, memory_mb=8192, disk_mb=10_000)
LIFE: tuple[Event, ...] = (
    TaskAccepted(attempt=1),
    RunnerAccepted(attempt=1),
    Exited(0, attempt=1),
    CleanedUp(Cleanup.REMOVE, attempt=1),
)


class Looks:
    """Counts how often a committer had to look before it wrote."""

    def __init__(self, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, transaction = 0, db.transaction

        def counted() -> Any:
            self.count += 1
            return transaction()

        monkeypatch.setattr(db, "transaction", counted)


async def host(desk: Desk) -> InstanceId:
    one = Instance(InstanceId(uuid4()), None, "test", Blocks(CAPACITY, 8), entered_at=desk.clock.now())
    await desk.committer.commit(Change(instances=(one,)))
    for event in (Launched("up"), ShimAnswered()):
        await desk.committer.commit(Change(facts=(of_instance(one.id, event),)))
    return one.id


async def job_of(db: Database, run: RunId) -> JobId:
    return JobId(await ask(db, "SELECT id FROM job WHERE run_id = $1 AND latest", run))


async def waiting(desk: Desk) -> tuple[InstanceId, RunId, JobId]:
    """A host, a run, and its job, which waits."""
    where, run = await host(desk), run_of((await desk.births(1))[0])
    return where, run, await job_of(desk.db, run)


async def told(desk: Desk, run: RunId, job: UUID, event: Event) -> bool:
    answer = await desk.committer.commit(Change(facts=(of_job(JobId(job), run, event),)))
    return all(answer.applied)


async def test_a_whole_life_needs_no_look(database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    async with database() as db:
        desk = await desk_on(db)
        looks = Looks(db, monkeypatch)
        where, run, job = await waiting(desk)
        for event in (Placed(where, (0,), attempt=1), *LIFE):
            assert await told(desk, run, job, event)
        assert looks.count == 0
        assert await ask(db, "SELECT state FROM run") == "DONE"
        assert await ask(db, "SELECT held::text FROM instance") == "{}"
        # What has finished is not remembered, and late news is still answered.
        assert not await told(desk, run, job, Exited(1, attempt=1))
        assert looks.count == 1


async def test_what_another_replica_changed_is_seen(database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    async with database() as db:
        one, two = await desk_on(db), await desk_on(db)
        where, run, job = await waiting(one)
        for desk, event in zip((two, one, two, one, two), (Placed(where, (0,), attempt=1), *LIFE), strict=True):
            assert await told(desk, run, job, event)
        assert await ask(db, "SELECT state FROM run") == "DONE"
        assert await ask(db, "SELECT held::text FROM instance") == "{}"


async def test_what_changes_nothing_is_compared_too(database: Databases) -> None:
    """The first replica remembers a job that is not placed; that it has started since must not be refused or lost."""
    async with database() as db:
        one, two = await desk_on(db), await desk_on(db)
        where, run, job = await waiting(one)
        assert await told(two, run, job, Placed(where, (0,), attempt=1))
        # By what it remembers this is stale: nobody has placed it.
        assert await told(one, run, job, TaskAccepted(attempt=1))
        # And the other way round: said twice, it is stale for both.
        assert not await told(two, run, job, TaskAccepted(attempt=1))


async def test_a_change_of_a_job_that_counts_as_before_is_a_change_of_its_run(database: Databases) -> None:
    async with database() as db:
        desk = await desk_on(db)
        where, run, job = await waiting(desk)
        await told(desk, run, job, Placed(where, (0,), attempt=1))
        before = await ask(db, "SELECT version FROM run")
        tally = await ask(db, "SELECT tally FROM run")
        await told(desk, run, job, TaskAccepted(attempt=1))
        assert await ask(db, "SELECT tally FROM run") == tally
        assert await ask(db, "SELECT version FROM run") > before


async def test_a_birth_said_twice_happens_once(database: Databases) -> None:
    async with database() as db:
        one, two = await desk_on(db), await desk_on(db)
        birth = one.birth("train")
        await asyncio.gather(one.committer.commit(birth), two.committer.commit(birth), one.committer.commit(birth))
        assert await ask(db, "SELECT count(*) FROM run") == await ask(db, "SELECT count(*) FROM job") == 1
        with pytest.raises(Conflict, match="not finished yet"):
            await one.committer.commit(one.birth("train"))


async def test_a_submission_that_is_replaced_and_the_one_that_replaces_it(database: Databases) -> None:
    async with database() as db:
        desk = await desk_on(db)
        where = await host(desk)
        retry = Retry(frozenset(RetryEvent), max_attempts=5)
        run = run_of((await desk.births(1, service=True, replicas=2, retry=retry))[0])
        for number in (1, 2):
            job = await ask(db, "SELECT id FROM job WHERE replica = 1 AND latest")
            events = (Placed(where, (0,), attempt=number), TaskAccepted(attempt=number), RunnerAccepted(attempt=number))
            for event in (*events, Exited(1, attempt=number)):
                assert await told(desk, run, job, event)
            while step := await ask(db, "SELECT cleanup FROM job WHERE id = $1 AND state = 'TERMINATING'", job):
                assert await told(desk, run, job, CleanedUp(Cleanup(step), attempt=number))
        column = "SELECT array_agg(state ORDER BY attempt) FROM job WHERE replica = 1"
        assert await ask(db, column) == ["FAILED", "FAILED", "SUBMITTED"]
        assert await ask(db, "SELECT array_agg(attempt ORDER BY replica) FROM job WHERE latest") == [1, 3]


async def test_another_server_behind_the_database_makes_it_forget(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that took over may have missed the last commits, and its versions may name other states."""
    async with database() as db:
        desk = await desk_on(db)
        births = await desk.births(3)
        looks = Looks(db, monkeypatch)
        await desk.stop(births[0])
        assert looks.count == 0
        db._generations.number += 1
        await desk.stop(births[1])
        assert looks.count == 1
        # Also when the connection to it is only made for this very statement.
        at_once = db.at_once

        @asynccontextmanager
        async def to_another() -> AsyncIterator[Connection]:
            async with at_once() as tx:
                db._generations.number += 1
                yield tx

        monkeypatch.setattr(db, "at_once", to_another)
        await desk.stop(births[2])
        assert looks.count == 2
        assert await ask(db, "SELECT count(*) FROM run WHERE state = 'TERMINATED'") == 3


async def test_a_server_that_was_started_again_is_another(home: Path) -> None:
    postgres = await Embedded.start(home, settings={"fsync": "off"})
    try:
        async with await Database.connect(postgres.url) as db:
            assert db.generation == 1
            os.kill(postgres.pid, signal.SIGQUIT)
            await eventually(lambda: _is_gone(db), "it is gone")
            await postgres.revive()
            assert await ask(db, "SELECT 1") == 1
            assert db.generation == 2
    finally:
        await postgres.stop()
        shutil.rmtree(home)


async def _is_gone(db: Database) -> bool:
    try:
        await ask(db, "SELECT 1")
    except ConnectionLost:
        return True
    return False


@pytest.fixture
def home(shared_directory: Path) -> Path:
    return shared_directory / f"memory-{uuid4().hex[:8]}"


async def test_a_refusal_that_rests_on_a_host_is_compared_too(database: Databases) -> None:
    """The first replica remembers that the block is taken; the second has given it back since."""
    async with database() as db:
        one, two = await desk_on(db), await desk_on(db)
        where = await host(one)
        first, second = (run_of(birth) for birth in await one.births(2))
        jobs = {run: await job_of(db, run) for run in (first, second)}
        await told(one, first, jobs[first], Placed(where, (0,), attempt=1))
        for event in LIFE:
            await told(two, first, jobs[first], event)
        assert await told(one, second, jobs[second], Placed(where, (0,), attempt=1))


async def test_a_statement_that_is_cut_off_is_said_again_and_happens_once(database: Databases) -> None:
    async with database() as db:
        desk = await desk_on(db)
        where, run, job = await waiting(desk)
        async with db.transaction() as other:
            await other.execute("SELECT FROM instance WHERE id = $1 FOR UPDATE", where)
            placing = asyncio.create_task(told(desk, run, job, Placed(where, (0,), attempt=1)))
            cut = "SELECT bool_or(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            await eventually(lambda: ask(db, cut), "it waits for the host, and is cut off")
        assert await placing
        assert await ask(db, "SELECT count(*) FROM journal WHERE event = 'Placed'") == 1


async def test_what_was_in_doubt_stays_in_doubt(database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut off once, and then another holds its run until nobody waits any longer: it may still have happened."""
    monkeypatch.setattr(module, "GIVE_UP_S", 0.3)
    async with database() as db:
        desk = await desk_on(db)
        birth = (await desk.births(1))[0]

        def cut_off() -> Any:
            raise ConnectionLost("cut off", outcome_unknown=True)

        monkeypatch.setattr(db, "at_once", cut_off)
        async with db.transaction() as other:
            await other.fetch("SELECT FROM run FOR UPDATE")
            with pytest.raises(ConnectionLost) as told:
                await desk.stop(birth)
        assert told.value.outcome_unknown


async def test_replicas_that_work_on_the_same_runs_and_hosts_lose_nothing(database: Databases) -> None:
    """Six committers tell the same stories of sixteen runs on two hosts, each in its own order and tempo."""
    async with database() as db:
        dice = random.Random(7)
        desks = [await desk_on(db) for _ in range(6)]
        hosts = [await host(desks[0]) for _ in range(2)]
        births = await desks[0].births(16)
        jobs = {run_of(birth): await job_of(db, run_of(birth)) for birth in births}
        places = {run: (hosts[number % 2], number // 2) for number, run in enumerate(jobs)}

        async def tell(desk: Desk, run: RunId) -> None:
            where, block = places[run]
            for event in (Placed(where, (block,), attempt=1), *LIFE):
                await asyncio.sleep(dice.random() * 0.004)
                await told(desk, run, jobs[run], event)

        async with asyncio.timeout(60.0):
            await asyncio.gather(*(tell(desk, run) for run in jobs for desk in desks))
        assert await ask(db, "SELECT count(*) FROM run WHERE state = 'DONE'") == len(jobs)
        assert await ask(db, "SELECT array_agg(held::text) FROM instance") == ["{}", "{}"]
        # Every transition happened once, whoever told it.
        assert await ask(db, "SELECT max(n) FROM (SELECT count(*) AS n FROM journal GROUP BY id, event, target)") == 1
        assert await ask(db, "SELECT count(*) FROM journal WHERE event = 'Exited'") == len(jobs)


async def test_the_memory_is_bounded_and_large_runs_have_no_place_in_it(database: Databases) -> None:
    async with database() as db:
        desk = await desk_on(db)
        desk.committer._memory = memory = Memory(most_jobs=20, most_instances=2)
        births = await desk.births(30)
        large = (await desk.births(1, service=True, replicas=MOST_JOBS_OF_ONE + 1))[0]
        hosts = [await host(desk) for _ in range(3)]
        assert memory.lend([stop(large)], db.generation) is None
        kept = [birth for birth in births if memory.lend([stop(birth)], db.generation) is not None]
        assert len(kept) == 10
        # What is lent is not there.
        assert memory.lend([stop(kept[0])], db.generation) is None
        lent = [memory.lend([Change(facts=(of_instance(one, ShimAnswered()),))], db.generation) for one in hosts]
        assert [one is not None for one in lent] == [False, True, True]
        # Runs that have no jobs yet count too.
        idle = await desk.births(30, service=True, replicas=0)
        assert sum(memory.lend([stop(birth)], db.generation) is not None for birth in idle) == 20


def stop(birth: Change) -> Change:
    return Change(facts=(of_run(run_of(birth), StopAsked()),))
