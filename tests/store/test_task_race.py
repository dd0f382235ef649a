"""Swarm tasks when many change them at once: counted exactly, claimed once, and nobody waits for ever."""

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from stoker.core.errors import UserError
from stoker.core.graph import Edge
from stoker.core.ids import WorkerId
from stoker.core.task import AVAILABLE, INACTIVE
from stoker.store import continuation, report, task, worker
from stoker.store.claim import Ask
from stoker.store.database import Database
from stoker.store.report import End
from tests.store.task_model import (
    ANN,
    LEASE_S,
    NOW,
    PROJECT,
    WORKERS,
    Databases,
    claim_all,
    claimed,
    draft,
    end,
    states,
    swarm,
    task_id,
)

MISCOUNTED = """
SELECT t.id, t.pending_dependency_count FROM task t WHERE t.state = 'inactive' AND t.pending_dependency_count <> (
    SELECT count(*) FROM continuation c JOIN task s ON s.id = c.source
    WHERE c.target = t.id AND s.state NOT IN ('terminated', 'cancelled')
)
"""


async def until_waiting(db: Database, *waiters: asyncio.Task[Any]) -> None:
    """Until each of these waits for a lock, or is done without."""
    async with asyncio.timeout(30), db.connection() as conn:
        while await conn.fetchval(WAITING) < sum(not waiter.done() for waiter in waiters):
            await asyncio.sleep(0.005)


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


async def test_fifty_claimers_on_ten_tasks_have_exactly_ten_winners(database: Databases) -> None:
    async with swarm(database, [draft(n) for n in range(1, 11)]) as db:
        answers = await asyncio.gather(*(claim_all(db, WORKERS[n % 3], 1) for n in range(50)))
    won = [held.task for answer in answers for held in answer]
    assert sorted(won) == [task_id(n) for n in range(1, 11)]


async def test_predecessors_that_end_at_once_release_their_continuation_exactly_once(database: Databases) -> None:
    """Eight tasks end in eight transactions of which none sees the others' work when it begins."""
    sources = range(2, 10)
    drafts = [draft(1, INACTIVE), *(draft(n) for n in sources)]
    async with swarm(database, drafts, *((n, 1) for n in sources)) as db:
        held = await claim_all(db)
        answers = await asyncio.gather(*(end(db, ANN, [one]) for one in held))
        assert sorted(answer.available for answer in answers) == [0, 0, 0, 0, 0, 0, 0, 1]
        assert (await states(db))[1] == "available"


async def test_the_same_end_reported_at_once_over_several_connections_counts_once(database: Databases) -> None:
    async with swarm(database, [draft(1), draft(2, INACTIVE)], (1, 2)) as db:
        held = await claim_all(db)
        answers = await asyncio.gather(*(end(db, ANN, held) for _ in range(6)))
        assert sorted(len(answer.refused) for answer in answers) == [0, 1, 1, 1, 1, 1]
        assert sum(answer.available for answer in answers) == 1


async def test_reports_cancellations_and_changes_of_edges_at_once_do_not_deadlock(database: Databases) -> None:
    """Ids run against the edges, so that following an edge and following the ids would meet head on."""
    layers, width = 6, 8
    edges = [
        (layer * width + a, (layer - 1) * width + b)
        for layer in range(1, layers)
        for a in range(1, width + 1)
        for b in range(1, width + 1)
    ]
    drafts = [
        draft(n, INACTIVE if n <= (layers - 1) * width else AVAILABLE, max_retry_count=2)
        for n in range(1, layers * width + 1)
    ]
    random = Random(7)
    async with swarm(database, drafts, *edges) as db:

        async def work(worker: WorkerId) -> None:
            while held := await claim_all(db, worker, 4):
                await end(db, worker, held, random.choice([0, 0, 0, 1]))

        async def meddle() -> None:
            for _ in range(20):
                chosen = random.sample(edges, 3)
                with suppress(UserError):
                    async with db.transaction() as tx:
                        await continuation.remove_continuations(tx, [Edge(*map(task_id, one)) for one in chosen], NOW)
                with suppress(UserError):
                    async with db.transaction() as tx:
                        await continuation.add_continuations(tx, [Edge(*map(task_id, one)) for one in chosen])

        async def cancel() -> None:
            for _ in range(10):
                async with db.transaction() as tx:
                    await task.cancel(tx, [task_id(random.randint(1, layers * width)) for _ in range(2)], NOW)

        await asyncio.gather(*(work(worker) for worker in WORKERS), meddle(), meddle(), cancel(), cancel())
        async with db.connection() as conn:
            assert await conn.fetch(MISCOUNTED) == []


async def test_whoever_waits_for_a_task_holds_none_with_a_higher_id(database: Databases) -> None:
    """An edge leads from 5 to 2. While somebody holds 2, an end of 5 and a cancellation wait without holding 5."""
    async with swarm(database, [draft(5), draft(2, INACTIVE)], (5, 2)) as db:
        (held,) = await claim_all(db)

        async def cancel() -> None:
            async with db.transaction() as tx:
                await task.cancel(tx, [task_id(5), task_id(2)], NOW)

        async with db.transaction() as tx:
            await tx.execute("SELECT FROM task WHERE id = $1 FOR UPDATE", task_id(2))
            waiters = [asyncio.create_task(end(db, ANN, [held])), asyncio.create_task(cancel())]
            await until_waiting(db, *waiters)
            await tx.execute("SELECT FROM task WHERE id = $1 FOR UPDATE NOWAIT", task_id(5))
        await asyncio.gather(*waiters)


async def test_two_edges_added_at_once_never_close_a_cycle(database: Databases) -> None:
    """1→2 and 3→4 exist; 2→3 and 4→1 come at once and have no task in common: one of them is refused."""
    async with swarm(database, [draft(n, INACTIVE) for n in range(1, 5)], (1, 2), (3, 4)) as db:

        async def add() -> None:
            async with db.transaction() as tx:
                await continuation.add_continuations(tx, [Edge(task_id(4), task_id(1))])

        async with db.transaction() as tx:
            await continuation.add_continuations(tx, [Edge(task_id(2), task_id(3))])
            second = asyncio.create_task(add())
            await until_waiting(db, second)
        with pytest.raises(UserError, match="circle"):
            await second


async def test_a_cancellation_reaches_an_edge_that_is_added_meanwhile(database: Databases) -> None:
    async with swarm(database, [draft(1), draft(2, INACTIVE), draft(3, INACTIVE)], (1, 2)) as db:

        async def cancel() -> None:
            async with db.transaction() as tx:
                await task.cancel(tx, [task_id(1)], NOW)

        async with db.transaction() as tx:
            await continuation.add_continuations(tx, [Edge(task_id(2), task_id(3))])
            cancelling = asyncio.create_task(cancel())
            await until_waiting(db, cancelling)
        await cancelling
        assert set((await states(db)).values()) == {"cancelled"}


async def test_a_final_failure_reaches_an_edge_that_is_added_meanwhile(database: Databases) -> None:
    async with swarm(database, [draft(1), draft(2, INACTIVE), draft(3, INACTIVE)], (1, 2)) as db:
        held = await claim_all(db)
        async with db.transaction() as tx:
            await continuation.add_continuations(tx, [Edge(task_id(2), task_id(3))])
            failing = asyncio.create_task(end(db, ANN, held, exit_status=1))
            await until_waiting(db, failing)
        await failing
        assert await states(db) == {1: "terminated", 2: "cancelled", 3: "cancelled"}


async def test_a_success_releases_an_edge_that_is_added_meanwhile(database: Databases) -> None:
    async with swarm(database, [draft(1), draft(2, INACTIVE)]) as db:
        held = await claim_all(db)
        async with db.transaction() as tx:
            await continuation.add_continuations(tx, [Edge(task_id(1), task_id(2))])
            ending = asyncio.create_task(end(db, ANN, held))
            await until_waiting(db, ending)
        assert (await ending).available == 1


async def test_a_dependency_that_succeeds_while_a_graph_waits_for_it_is_satisfied(database: Databases) -> None:
    """It was running when the graph named it, and has ended when the graph has its lock: no mistake of anybody."""
    async with swarm(database, [draft(1)]) as db:
        (held,) = await claim_all(db)

        async def store() -> continuation.Opened:
            async with db.transaction() as tx:
                load = task.Load(tx, PROJECT, NOW)
                await load.add([task.Draft(task_id(2), PROJECT, None, command='"true"')])
                return await load.finish([Edge(task_id(1), task_id(2))], forgiving=True)

        async with db.transaction() as tx:
            await report.report(tx, [(ANN, End(held, 0))], NOW)
            storing = asyncio.create_task(store())
            await until_waiting(db, storing)
        assert (await storing).count == 1
        assert await states(db) == {1: "terminated", 2: "available"}


async def test_a_cancellation_that_meets_a_claim_leaves_what_waits_for_the_task_alone(database: Databases) -> None:
    """The task was available when the cancellation looked and runs when it has the lock: its worker is told."""
    async with swarm(database, [draft(1), draft(2, INACTIVE)], (1, 2)) as db:

        async def cancel() -> task.Cancelled:
            async with db.transaction() as tx:
                return await task.cancel(tx, [task_id(1)], NOW)

        async with db.transaction() as tx:
            ((held,),) = await claimed(tx, Ask.anything(ANN, 1, 1))
            cancelling = asyncio.create_task(cancel())
            await until_waiting(db, cancelling)
        assert await cancelling == (0, [(ANN, held)])
        assert await states(db) == {1: "pending_cancellation", 2: "inactive"}
        async with db.transaction() as tx:
            await report.report(tx, [(ANN, End(held, None, stopped=True))], NOW)
        assert await states(db) == {1: "cancelled", 2: "cancelled"}


async def test_a_worker_that_claims_is_not_lost_at_the_same_time(database: Databases) -> None:
    async with swarm(database, [draft(1)]) as db:
        async with db.transaction() as tx:
            await worker.renew(tx, [ANN], LEASE_S, NOW + LEASE_S)
            await claimed(tx, Ask.anything(ANN, 1, 1))
            async with db.transaction() as other:
                await worker.expire(other, NOW + LEASE_S)
        assert await states(db) == {1: "running"}
