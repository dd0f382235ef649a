"""What a round of claims hands out on a real PostgreSQL: by room, by time left, by key, and what it says is left."""

from typing import Any

import pytest

from stoker.core.errors import Conflict, NotFound
from stoker.core.fit import Asker, Kind, Room
from stoker.core.graph import Edge, Held
from stoker.core.task import INACTIVE, TERMINATED
from stoker.store import claim, report, sample, task, task_kind, worker
from stoker.store.claim import MOST_SPANS, Ask
from stoker.store.database import Connection
from stoker.store.report import End
from tests.store.task_model import (
    ANN,
    BOB,
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
)

ROOMY = Room({"cpus": 8, "memory": 1000}, (1, 1))


def ask(worker: Any, most: int = 10, time_left_s: float | None = None, room: Room = ROOMY) -> Ask:
    return Ask(worker, 1, Asker(ROOMY, room, most), time_left_s)


async def given(tx: Connection, *asks: Ask) -> list[list[int]]:
    return [[held.task.int for held in works] for works in await claimed(tx, *asks)]


def timed(n: int, estimated_runtime: float | None, **fields: Any) -> task.Draft:
    return draft(n, estimated_runtime=estimated_runtime, **fields)


async def test_whoever_says_nothing_of_its_room_takes_whatever_there_is(database: Databases) -> None:
    drafts = [draft(n, requested_resources='{"cpus": 64, "gpus": 8, "licence": 9}') for n in range(1, 6)]
    async with swarm(database, drafts) as db:
        assert [held.task.int for held in await claim_all(db, ANN, 4)] == [1, 2, 3, 4]


async def test_a_worker_gets_what_fits_and_an_alternative_does_as_well(database: Databases) -> None:
    drafts = [
        draft(1, requested_resources='{"cpus": 16}'),
        draft(2, requested_resources='{"cpus": 6}'),
        draft(3, requested_resources='{"cpus": 3}'),
        draft(4, requested_resources='{"gpus": 4}', alternatives=('{"cpus": 2}',)),
        draft(5, requested_resources='{"gpus": 2}'),
    ]
    async with swarm(database, drafts) as db, db.transaction() as tx:
        assert await given(tx, ask(ANN)) == [[2, 4, 5]]


async def test_a_worker_with_little_time_left_gets_no_longer_tasks(database: Databases) -> None:
    """Also not those of the kind that begins below its time and ends above it, however urgent they are."""
    drafts = [timed(1, 3600), timed(2, 120, priority=5), timed(3, 99), timed(4, 30), timed(5, None)]
    async with swarm(database, drafts) as db, db.transaction() as tx:
        assert await given(tx, ask(ANN, most=1, time_left_s=100.0)) == [[3]]
        assert await given(tx, ask(ANN, time_left_s=100.0)) == [[4, 5]]
        assert await given(tx, ask(ANN, time_left_s=100.0)) == [[]]
        assert await given(tx, ask(BOB)) == [[2, 1]]


async def test_who_has_little_time_does_not_keep_the_others_from_long_tasks(database: Databases) -> None:
    """They ask in one round: a worker that is about to end stands there as long as there is nothing short."""
    async with swarm(database, [timed(1, 3600), timed(2, 120), timed(3, 110)]) as db, db.transaction() as tx:
        last = WORKERS[2]
        asks = ask(ANN, time_left_s=100.0), ask(BOB, most=1), ask(last, most=1, time_left_s=115.0)
        assert await given(tx, *asks) == [[], [1], [3]]


async def test_many_workers_with_little_time_left_are_looked_at_together(database: Databases) -> None:
    """Each of a hundred has another time left: nobody gets what is too long, and what somebody can take is taken."""
    async with swarm(database, [timed(1, 100), timed(2, 64.5), timed(3, 127)]) as db, db.transaction() as tx:
        asks = [ask(ANN, most=1, time_left_s=65.0 + n / 2) for n in range(100)]
        found = await given(tx, *asks)
    assert len(asks) > MOST_SPANS
    assert {task for tasks in found for task in tasks} == {1, 2}
    for one, tasks in zip(asks, found, strict=True):
        assert one.time_left_s is not None
        assert all({1: 100, 2: 64.5, 3: 127}[task] <= one.time_left_s for task in tasks)


async def test_a_kind_of_which_nothing_is_left_is_said_to_be_empty(database: Databases) -> None:
    drafts = [draft(1), draft(2, requested_resources='{"cpus": 1}'), draft(3, requested_resources='{"cpus": 99}')]
    async with swarm(database, drafts) as db, db.transaction() as tx:
        kinds = await task_kind.read(tx, await task_kind.waiting_kinds(tx, PROJECT))
        needs = {id: stored.kind for id, stored in kinds.items()}
        first = await claim.claim(tx, PROJECT, [ask(ANN)], kinds, NOW)
        assert (len(first.works[0]), first.empty) == (2, frozenset())
        second = await claim.claim(tx, PROJECT, [ask(ANN)], kinds, NOW)
        assert second.empty == {id for id, kind in needs.items() if kind != Kind(({"cpus": 99},))}
        assert (await claim.claim(tx, PROJECT, [ask(ANN, most=0)], kinds, NOW)).empty == frozenset()


async def test_the_most_urgent_of_all_kinds_come_first(database: Databases) -> None:
    drafts = [
        draft(n, requested_resources=f'{{"cpus": {1 + n % 2}}}', priority=priority)
        for n, priority in enumerate((0, 5, 3, 5, 9, 0), start=1)
    ]
    async with swarm(database, drafts) as db, db.transaction() as tx:
        assert await given(tx, ask(ANN, most=4)) == [[5, 2, 4, 3]]


async def test_only_so_many_tasks_with_a_key_run_and_one_that_ends_makes_room(database: Databases) -> None:
    async with swarm(database, [draft(n, key="licence") for n in range(1, 6)]) as db:
        async with db.transaction() as tx:
            await task_kind.set_keys(tx, PROJECT, {"licence": 2})
            assert await given(tx, ask(ANN), ask(BOB)) == [[1], [2]]
            assert await given(tx, ask(WORKERS[2])) == [[]]
        async with db.transaction() as tx:
            (first,) = await tx.fetch("SELECT id, attempt FROM task WHERE worker_id = $1", ANN)
            await report.report(tx, [(ANN, End(Held(*first), 0))], NOW)
            assert await given(tx, ask(WORKERS[2])) == [[3]]


async def test_a_task_whose_time_has_not_come_is_not_handed_out_nor_counted_as_opened(database: Databases) -> None:
    later = NOW + 50
    async with swarm(database, []) as db, db.transaction() as tx:
        drafts = [draft(1, start_at=later), draft(2, INACTIVE, start_at=later), draft(3, INACTIVE, start_at=later)]
        assert (await task.create(tx, drafts, [], NOW)).count == 0
        assert (await task.make_available(tx, [drafts[1].id], NOW)).count == 0
        assert await given(tx, ask(ANN)) == [[]]
        assert await task.next_moment(tx) == later
        begun, opened = await task.begin_due(tx, later, 100)
        assert (begun, opened.count) == (3, 2)
        assert await given(tx, ask(ANN)) == [[1, 2]]


async def test_what_is_cancelled_is_held_by_nothing_any_more(database: Databases) -> None:
    """Neither does its moment come, nor is it listed among those that took their workers down."""
    async with swarm(database, []) as db, db.transaction() as tx:
        first, second = draft(1, start_at=NOW + 50), draft(2, INACTIVE, start_at=NOW + 50)
        await task.create(tx, [first, second], [Edge(first.id, second.id)], NOW)
        assert (await task.cancel(tx, [first.id], NOW)).cancelled == 2
        assert await task.next_moment(tx) is None


async def test_a_worker_that_leaves_in_good_order_gives_back_and_one_that_is_gone_loses(database: Databases) -> None:
    async with swarm(database, [draft(1, max_retry_count=1), draft(2, max_retry_count=1)]) as db:
        await claim_all(db, ANN, 1)
        await claim_all(db, BOB, 1)
        async with db.transaction() as tx:
            assert (await worker.leave(tx, ANN, NOW, lost=False)).count == 1
            assert (await worker.leave(tx, BOB, NOW, lost=True)).count == 0
            assert (await worker.leave(tx, BOB, NOW, lost=True)).count == 0, "said twice"
        assert await states(db) == {1: "available", 2: "terminated"}


async def test_who_has_left_is_unknown_and_takes_a_new_id(database: Databases) -> None:
    async with swarm(database, [draft(1)]) as db:
        async with db.transaction() as tx:
            await worker.leave(tx, ANN, NOW, lost=False)
            assert list(await worker.renew(tx, WORKERS, LEASE_S, NOW)) == WORKERS[1:]
            with pytest.raises(NotFound):
                await worker.heartbeat(tx, ANN, [], LEASE_S, NOW)
        with pytest.raises(Conflict, match="new id"):
            async with db.transaction() as tx:
                await worker.register(tx, ANN, PROJECT, worker.Profile("w"), LEASE_S, NOW)


async def test_what_an_attempt_printed_and_measured_is_kept_once(database: Databases) -> None:
    async with swarm(database, [draft(1)]) as db:
        (held,) = await claim_all(db)
        said = End(held, 3, False, NOW - 7, NOW - 2, cpu_s=4.5, memory_bytes=2e9, message="oops", stdout=b"hello")
        async with db.transaction() as tx:
            await report.started(tx, [(ANN, held, NOW - 7), (BOB, held, NOW - 99)])
            samples = [sample.Sample(held, "memory", NOW + 1, 5.0)]
            await sample.sampled(tx, [(ANN, one) for one in samples] + [(BOB, one) for one in samples])
            answer = await report.report(tx, [(ANN, said), (ANN, said._replace(exit_status=0)), (BOB, said)], NOW)
            assert answer.refused == {(BOB, held): TERMINATED}
        assert (await end(db, ANN, [held])).refused != {}
        async with db.connection() as conn:
            (row,) = await conn.fetch("SELECT * FROM execution")
            assert (row["time_started"], row["time_terminated"], row["exit_status"]) == (NOW - 7, NOW - 2, 3)
            assert (row["cpu_s"], row["memory_bytes"], row["message"]) == (4.5, 2e9, "oops")
            assert [tuple(row)[3:] for row in await conn.fetch("SELECT * FROM task_sample")] == [(1.0, 5.0)]
            assert await conn.fetchval("SELECT stdout FROM task_output") == b"hello"
