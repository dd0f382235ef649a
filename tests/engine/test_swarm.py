"""The engine's door to the swarm, on a real PostgreSQL: whole lives of tasks, and servers that were away."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from stoker.core.errors import Conflict, NotFound, Unavailable
from stoker.core.graph import Edge, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import AVAILABLE, INACTIVE, State
from stoker.engine.swarm import LEASE_S, MOST_TRIES, Swarm
from stoker.store import claim, journal
from stoker.store.continuation import Opened
from stoker.store.database import Database
from stoker.store.report import End
from stoker.store.task import Draft
from stoker.store.worker import Profile
from tests.conftest import Databases
from tests.engine.conftest import engine_with, eventually

PROJECT = ProjectId(UUID(int=0xC0FFEE))
ANN, BOB = WorkerId(UUID(int=0xA)), WorkerId(UUID(int=0xB))
A, B, C = (TaskId(UUID(int=n)) for n in range(1, 4))
W = Profile("w")


class Now:
    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at


def draft(id: TaskId, state: State = AVAILABLE, **fields: Any) -> Draft:
    return Draft(id, PROJECT, state, command='"true"', **fields)


@asynccontextmanager
async def swarm_on(db: Database, clock: Now) -> AsyncIterator[Swarm]:
    swarm = Swarm(db, clock)
    for worker in (ANN, BOB):
        await swarm.register(worker, PROJECT, W)
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
        told: list[Opened] = []
        swarm.opened = told.append
        assert await swarm.report(ANN, [End(one, 0) for one in await claimed(swarm)]) == []
        assert [opened.count for opened in told] == [1]
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
        assert await swarm.report(ANN, [End(first, 0)]) == [(first, State.RUNNING)]
        assert await swarm.give_back(ANN, [first]) == [(first, State.RUNNING)]
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
        await engine.swarm.register(ANN, PROJECT, W)
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
        await swarm.register(ANN, PROJECT, W)
        with pytest.raises(Conflict, match="another project"):
            await swarm.register(ANN, ProjectId(UUID(int=5)), W)


async def test_nothing_of_what_an_unknown_worker_says_is_done(database: Databases) -> None:
    stranger = WorkerId(UUID(int=77))
    async with database() as db, swarm_on(db, Now()) as swarm:
        await swarm.create([draft(A)])
        for act in (swarm.claim(stranger, 1, 1), swarm.report(stranger, []), swarm.heartbeat(stranger, [], 0)):
            with pytest.raises(NotFound, match="Register it first"):
                await act
        assert await states(db) == ["available"]


async def test_a_task_that_took_its_workers_down_is_held_until_somebody_lets_it_go(database: Databases) -> None:
    clock = Now()
    async with database() as db, swarm_on(db, clock) as swarm:
        told: list[Opened] = []
        await swarm.create([draft(A, max_retry_count=9, crash_limit=2)])
        swarm.opened = told.append
        for _ in range(2):
            assert await claimed(swarm) != []
            await passes(swarm, clock, LEASE_S)
        assert [opened.count for opened in told] == [1], "the second time it cannot be claimed"
        assert await states(db) == ["available"]
        assert await claimed(swarm) == []
        assert await swarm.let_go([A]) == 1
        assert await swarm.let_go([A]) == 0
        assert await claimed(swarm, BOB) == [Held(A, 3)]


async def test_a_task_begins_when_its_time_has_come_and_ends_when_it_is_over(database: Databases) -> None:
    clock = Now()
    async with database() as db, swarm_on(db, clock) as swarm:
        assert (await swarm.moments_once()).again_after_s is None
        start, deadline = clock.at + 10, clock.at + 20
        drafts = [draft(A, start_at=start, deadline_at=deadline), draft(B, deadline_at=deadline), draft(C, INACTIVE)]
        assert await swarm.create(drafts, [Edge(A, C)]) == 1
        assert [held.task for held in await claimed(swarm)] == [B]
        assert (await swarm.moments_once()).again_after_s == 10
        clock.at = start
        assert (await swarm.moments_once()).did == 1
        assert [held.task for held in await claimed(swarm)] == [A]
        told: list[tuple[WorkerId, Held]] = []
        swarm.cancelled = told.extend
        assert (await swarm.moments_once()).again_after_s == 10
        clock.at = deadline
        assert (await swarm.moments_once()).did == 2
        assert sorted(told) == [(ANN, Held(A, 1)), (ANN, Held(B, 1))]
        assert await states(db) == ["pending_cancellation", "pending_cancellation", "inactive"]
        assert (await swarm.moments_once()).again_after_s is None


async def test_one_whose_deadline_passes_before_it_may_begin_is_cancelled_and_its_moment_does_not_come(
    database: Databases,
) -> None:
    clock = Now()
    async with database() as db, swarm_on(db, clock) as swarm:
        await swarm.create([draft(A, start_at=clock.at + 20, deadline_at=clock.at + 10)])
        clock.at += 10
        assert (await swarm.moments_once()).did == 1
        assert await states(db) == ["cancelled"]
        assert (await swarm.moments_once()).again_after_s is None


async def test_a_worker_that_left_holds_nothing_and_who_waits_is_told(database: Databases) -> None:
    async with database() as db, swarm_on(db, Now()) as swarm:
        await swarm.create([draft(A)])
        await claimed(swarm)
        told: list[Opened] = []
        swarm.opened = told.append
        assert await swarm.leave(ANN) == 1
        assert [opened.count for opened in told] == [1]
        assert await claimed(swarm, BOB) == [Held(A, 2)]


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
