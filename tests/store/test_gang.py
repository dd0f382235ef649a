"""The queue is walked in its order, from its head, whatever waits behind and however much has ended."""

import json
import random
from typing import Any
from uuid import UUID

from stoker.core.ids import JobId, RunId
from stoker.store import gang as store
from stoker.store.database import Connection
from stoker.store.gang import AHEAD, IMPATIENT, ONE, WAITING
from tests.conftest import Databases

RUN = """
INSERT INTO run (id, project_id, name, policy, resources, priority, submitted_at, whole, state, version, entered_at,
                 round, replicas, tally)
VALUES ($1::uuid, $1, $1::uuid::text, $2, '{}', $3, 0, true, $4, 1, 0, 1, 1, '{}')
"""
JOB = """
INSERT INTO job (id, run_id, replica, node, attempt, round, submitted_at, latest, ready_at, state, version, entered_at,
                 fate, tries, streak, priority, instance_id)
VALUES ($1, $2, $3, $4, $5, 1, $6, $7, $8, $9, 1, 0, '', 0, 0, $10, $11)
"""
Turn = tuple[int, float, RunId, int]


async def run(tx: Connection, number: int, priority: int = 50, state: str = "SUBMITTED", **policy: Any) -> RunId:
    id = RunId(UUID(int=number))
    await tx.execute(RUN, id, json.dumps(policy), priority, state)
    return id


async def job(
    tx: Connection, run_id: RunId, replica: int = 0, node: int = 0, at: float = 0.0, priority: int = 50, **more: Any
) -> JobId:
    attempt = more.get("attempt", 1)
    id = JobId(UUID(int=run_id.int * 10**9 + replica * 10**6 + node * 1000 + attempt))
    state, latest = more.get("state", "SUBMITTED"), more.get("latest", True)
    await tx.execute(
        JOB, id, run_id, replica, node, attempt, at, latest, more.get("ready_at"), state, priority, more.get("where")
    )
    return id


async def walked(tx: Connection, limit: int) -> list[tuple[UUID, int]]:
    return [(row["run_id"], row["replica"]) for row in await tx.fetch(WAITING, limit)]


async def test_the_walk_is_in_the_order_of_turns_and_stops_where_it_is_told(database: Databases) -> None:
    """Runs of any priority and size, some of them not to be placed, some jobs of which have a machine already."""
    dice = random.Random(11)
    async with database() as db, db.transaction() as tx:
        turns: list[Turn] = []
        jobs: dict[tuple[UUID, int], list[UUID]] = {}
        for number in range(1, 81):
            priority, state = dice.choice((0, 50, 90)), dice.choice(("SUBMITTED", "RUNNING", "RUNNING", "TERMINATING"))
            id = await run(tx, number, priority, state)
            nodes = dice.choice((1, 1, 3))
            for replica in range(dice.choice((1, 1, 4))):
                waits = [dice.random() < 0.8] * nodes
                at = float(dice.randint(0, 5))
                for node in range(nodes):
                    # Of a gang that waits the oldest job counts.
                    moment = at + (dice.choice((0.0, 1.5)) if node else 0.0)
                    where = None if waits[node] else UUID(int=5)
                    made = await job(tx, id, replica, node, moment, priority, where=where)
                    if waits[node] and state != "TERMINATING":
                        jobs.setdefault((id, replica), []).append(made)
                if waits[0] and state != "TERMINATING":
                    turns.append((-priority, at, id, replica))
        expected = [(id, replica) for _, _, id, replica in sorted(turns)]
        assert await walked(tx, 1_000) == expected
        seen = {(row["run_id"], row["replica"]): list(row["jobs"]) for row in await tx.fetch(WAITING, 1_000)}
        assert seen == jobs
        assert (await walked(tx, 7)) == expected[: len(await walked(tx, 7))]
        assert len(await walked(tx, 7)) >= 5, "a gang with jobs of several ages is counted once for each"
        for place, (urgency, at, id, replica) in enumerate(sorted(turns), start=1):
            rows = await tx.fetch(AHEAD, 1_000, -urgency, at, id, replica)
            assert [(row["run_id"], row["replica"]) for row in rows] == expected[:place]
            assert {(row["place"], row["waiting"]) for row in rows} == {(place, len(turns))}
            assert [row["jobs"] for row in rows] == [len(jobs[one]) for one in expected[:place]]
        (one,) = await tx.fetch(ONE, id, replica)
        assert list(one["jobs"]) == jobs[id, replica]


async def test_who_waits_for_an_earlier_try_or_for_its_time_is_held_up(database: Databases) -> None:
    async with database() as db, db.transaction() as tx:
        free, again, later = [await run(tx, number) for number in (1, 2, 3)]
        await job(tx, free)
        await job(tx, again, latest=False, state="TERMINATING")
        await job(tx, again, attempt=2)
        await job(tx, later, ready_at=70.0)
        assert [row["held_up"] for row in await tx.fetch(WAITING, 10)] == [False, True, True]
        assert [(one.held_up, one.ready_at) for one in await store.of_run(tx, later, 10)] == [(True, 70.0)]
        assert not await tx.fetchval(IMPATIENT)
        await job(tx, await run(tx, 4, on_no_capacity="fail"))
        assert await tx.fetchval(IMPATIENT)


async def test_the_first_few_are_found_without_looking_at_the_others(database: Databases) -> None:
    """Three thousand wait behind them, one array has ten thousand jobs, and as many runs have ended."""
    async with database() as db, db.transaction() as tx:
        await tx.execute(
            """INSERT INTO run (id, project_id, name, policy, resources, priority, submitted_at, whole, state, version,
                                entered_at, round, replicas, tally)
            SELECT lpad(to_hex(n), 32, '0')::uuid, lpad('1', 32, '0')::uuid, 'r' || n, '{}', '{}', 50, n, true,
                   CASE WHEN n <= 3000 THEN 'SUBMITTED' ELSE 'DONE' END, 1, 0, 1, 1, '{}'
            FROM generate_series(1, 13000) AS n"""
        )
        await tx.execute(
            """INSERT INTO job (id, run_id, replica, node, attempt, round, submitted_at, latest, state, version,
                                entered_at, fate, tries, streak)
            SELECT gen_random_uuid(), run.id, replica, 0, 1, 1, run.submitted_at, true, run.state, 1, 0, '', 0, 0
            FROM run, generate_series(0, CASE WHEN run.name = 'r2' THEN 9999 ELSE 0 END) AS replica"""
        )
        await tx.execute("ANALYZE")
        plan = json.loads(await tx.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {WAITING}", 32))[0]["Plan"]
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 2_000
        assert len(await walked(tx, 32)) == 32
