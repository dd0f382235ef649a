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
from stoker.engine.swarm import LEASE_S, MOST_TRIES, Swarm
from stoker.store import claim, journal
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
    swarm = Swarm(db, clock)
    for worker in (ANN, BOB):
        await swarm.register(worker, PROJECT, "w")
    await swarm.expire_once()
    yield swarm


async def passes(swarm: Swarm, clock: Now, length_s: float) -> int:
    """Its loop runs every few seconds; how many workers it found lost."""
    did = (await swarm.expire_once()).did
    end = clock.at + length_s
    while clock.at < end:
        clock.at = min(clock.at + 5.0, end)
        did += (await swarm.expire_once()).did
    return did


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
        assert await passes(swarm, clock, LEASE_S / 2) == 0
        assert (await swarm.expire_once()).again_after_s == LEASE_S / 2, "it comes back when the lease is over"
        await swarm.heartbeat(BOB, [], 0)
        assert await passes(swarm, clock, LEASE_S / 2) == 1
        (second,) = await claimed(swarm, BOB)
        assert second.attempt == first.attempt + 1
        assert (await swarm.report(ANN, [End(first, 0)])).refused == [(first, State.RUNNING)]
        assert (await swarm.heartbeat(ANN, [first], 1)).gone == [first]
        assert await states(db) == ["running"]


async def test_while_no_server_was_there_no_lease_runs_out(database: Databases) -> None:
    """The only server was away for an hour, or frozen, or had no database: nobody could hear the workers."""
    clock = Now()
    async with database() as db, swarm_on(db, clock) as swarm:
        await swarm.create([draft(A)])
        await claimed(swarm)
        for server in (swarm, Swarm(db, clock)):
            clock.at += 3600.0
            await passes(server, clock, LEASE_S - 1.0)
            assert await states(db) == ["running"], "a full new period"
        await passes(server, clock, 1.0)
        assert await states(db) == ["terminated"]


async def test_a_server_that_stays_finds_lost_workers_while_another_one_starts_again_and_again(
    database: Databases,
) -> None:
    clock = Now()
    async with database() as db, swarm_on(db, clock) as swarm:
        await swarm.create([draft(A)])
        await claimed(swarm)
        for _ in range(6):
            await Swarm(db, clock).expire_once()
            await passes(swarm, clock, 10.0)
        assert await states(db) == ["terminated"]


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
