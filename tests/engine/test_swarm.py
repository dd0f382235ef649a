"""The engine's door to the swarm, on a real PostgreSQL: whole lives of tasks, and servers that were away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg
import pytest

from stoker.core.errors import Conflict, NotFound, Unavailable
from stoker.core.graph import Edge, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import AVAILABLE, INACTIVE, State
from stoker.engine.engine import Engine, Settings
from stoker.engine.swarm import LEASE_S, MOST_TRIES, Swarm
from stoker.store import claim, journal, replica
from stoker.store.claim import End
from stoker.store.database import Database
from stoker.store.task import Draft
from tests.conftest import Databases
from tests.engine.conftest import engine_with, eventually

PROJECT = ProjectId(UUID(int=0xC0FFEE))
ANN, BOB = WorkerId(UUID(int=0xA)), WorkerId(UUID(int=0xB))
A, B, C = (TaskId(UUID(int=n)) for n in range(1, 4))


class Now:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at


def draft(id: TaskId, state: State = AVAILABLE, max_retry_count: int = 1) -> Draft:
    return Draft(id, PROJECT, state, command='"true"', max_retry_count=max_retry_count)


@asynccontextmanager
async def swarm_on(db: Database, clock: Now) -> AsyncIterator[Swarm]:
    """As inside a replica whose heart beats."""
    swarm = Swarm(db, clock)
    for worker in (ANN, BOB):
        await swarm.register(worker, PROJECT, "w")
    await beat(db, clock)
    yield swarm


async def beat(db: Database, clock: Now, name: str = "a") -> None:
    async with db.transaction() as tx:
        await replica.register(tx, name, clock.now())


async def states(db: Database) -> list[str]:
    async with db.connection() as connection:
        return [row["state"] for row in await connection.fetch("SELECT state FROM task ORDER BY id")]


async def claimed(swarm: Swarm, worker: WorkerId = ANN, number: int = 1) -> list[Held]:
    return [work.held for work in await swarm.claim(worker, 10, number)]


async def test_an_end_that_is_reported_opens_what_waited_for_it(database: Databases) -> None:
    async with database() as db, swarm_on(db, Now()) as swarm:
        assert await swarm.create([draft(A), draft(B, INACTIVE)], [Edge(A, B)]) == 1
        answer = await swarm.report(ANN, [End(one, 0) for one in await claimed(swarm)])
        assert answer == (1, [])
        assert await states(db) == ["terminated", "available"]


async def test_the_task_of_a_lost_worker_moves_on_after_its_lease_and_its_late_report_is_refused(
    database: Databases,
) -> None:
    clock = Now()
    async with database() as db, swarm_on(db, clock) as swarm:
        await swarm.create([draft(A, max_retry_count=2)])
        (first,) = await claimed(swarm)
        clock.at += LEASE_S / 2
        counts = await swarm.expire_once()
        assert (counts.did, counts.again_after_s) == (0, LEASE_S / 2), "it comes back when the lease is over"
        await swarm.heartbeat(BOB, [], 0)
        clock.at += LEASE_S / 2
        await beat(db, clock)
        assert (await swarm.expire_once()).did == 1
        (second,) = await claimed(swarm, BOB)
        assert second.attempt == first.attempt + 1
        assert (await swarm.report(ANN, [End(first, 0)])).refused == [(first, State.RUNNING)]
        assert (await swarm.heartbeat(ANN, [first], 1)).gone == [first]
        assert await states(db) == ["running"]


async def test_while_no_replica_was_there_no_lease_runs_out(database: Databases) -> None:
    """The only server, or the database, was away for an hour: nobody could hear the workers."""
    clock = Now()
    async with database() as db, swarm_on(db, clock) as swarm:
        await swarm.create([draft(A)])
        await claimed(swarm)
        clock.at += 3600.0
        assert (await swarm.expire_once()).did == 0
        await beat(db, clock)
        clock.at += LEASE_S - 1.0
        await beat(db, clock)
        assert (await swarm.expire_once()).did == 0, "a full new period"
        clock.at += 1.0
        assert (await swarm.expire_once()).did == 2


async def test_an_engine_that_starts_gives_a_full_new_period_when_it_was_alone(database: Databases) -> None:
    """Its own earlier life does not count: while it was away nobody was there, however short that was."""
    clock = Now()
    async with database() as db, swarm_on(db, clock) as swarm:
        await swarm.create([draft(A)])
        await claimed(swarm)
        for other, spared in (("b", False), ("a", True)):
            async with db.transaction() as tx:
                await tx.execute("DELETE FROM replica")
            await beat(db, clock, other)
            clock.at += 5.0
            engine = Engine(db, Settings("a", listens=False), {}, clock=clock)
            await engine.start()
            async with db.connection() as connection:
                end = await claim.next_lease_end(connection)
            await engine.stop()
            assert end is not None
            assert (end == clock.at + LEASE_S) is spared


async def test_an_engine_expires_workers_by_itself(database: Databases) -> None:
    async with database() as db, engine_with(db, {}, lease_s=0.2, period_s=0.1) as engine:
        await engine.swarm.register(ANN, PROJECT, "w")
        await engine.swarm.create([draft(A)])
        await engine.swarm.claim(ANN, 1, 1)

        async def lost() -> bool:
            return await states(db) == ["terminated"]

        await eventually(lost, "the lease is over")


async def test_a_bulk_act_has_one_entry_in_the_journal(database: Databases) -> None:
    async with database() as db, swarm_on(db, Now()) as swarm:
        await swarm.create([draft(A), draft(B, INACTIVE), draft(C, INACTIVE)], [Edge(A, B), Edge(B, C)], by="ann")
        answer = await swarm.cancel([A], by="bob")
        assert (answer.cancelled, answer.told) == (3, [])
        await swarm.cancel([A])
        async with db.connection() as connection:
            created, cancelled = await journal.story(connection, PROJECT) + await journal.story(connection, A)
        assert (created.event, created.note, created.by) == ("Created", "3 tasks, 2 continuations", "ann")
        assert (cancelled.event, cancelled.by) == ("CancelAsked", "bob")
        assert cancelled.note == "1 asked for, 3 cancelled, 0 still running"


async def test_a_registration_said_twice_is_one_worker_and_another_project_cannot_have_it(database: Databases) -> None:
    async with database() as db, swarm_on(db, Now()) as swarm:
        await swarm.register(ANN, PROJECT, "w")
        with pytest.raises(Conflict, match="another project"):
            await swarm.register(ANN, ProjectId(UUID(int=5)), "w")
        with pytest.raises(NotFound):
            await swarm.claim(WorkerId(UUID(int=77)), 1, 1)


@pytest.mark.parametrize("deadlocks", [1, MOST_TRIES])
async def test_a_transaction_that_gave_way_is_said_again_a_few_times(
    database: Databases, monkeypatch: pytest.MonkeyPatch, deadlocks: int
) -> None:
    left = [asyncpg.DeadlockDetectedError("deadlock detected") for _ in range(deadlocks)]
    plain = claim.claim

    async def unlucky(*args: object) -> object:
        found = await plain(*args)  # type: ignore[arg-type]
        if left:
            raise left.pop()
        return found

    async with database() as db, swarm_on(db, Now()) as swarm:
        await swarm.create([draft(A)])
        monkeypatch.setattr(claim, "claim", unlucky)
        if deadlocks < MOST_TRIES:
            (held,) = await claimed(swarm)
            assert held == Held(A, 1), "what was rolled back cost no attempt"
        else:
            with pytest.raises(Unavailable):
                await claimed(swarm)
            assert await states(db) == ["available"]
