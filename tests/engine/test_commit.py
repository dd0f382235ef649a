"""Many callers, one path: coalesced, isolated, in order, said again when the database went away."""

import asyncio
import itertools
import random
from contextlib import suppress
from functools import partial
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from stoker.core.errors import Broken, Conflict, NotFound, Unavailable
from stoker.core.ids import RunId
from stoker.core.run_facts import ReplicasWanted, StopAsked
from stoker.engine import commit as module
from stoker.engine.batch import Batch, commit_batch
from stoker.engine.change import Change, Fact, of_run
from stoker.engine.commit import LANES, Committer
from stoker.store.database import Connection, ConnectionLost
from tests.conftest import Databases
from tests.engine.conftest import ask, eventually
from tests.engine.desk import desk_on, run_of, state_of

HANG_UP = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'stoker' AND pid <> pg_backend_pid()
"""


async def test_many_callers_share_few_transactions(database: Databases) -> None:
    callers, each = 64, 10
    async with database() as db:
        desk = await desk_on(db)

        async def caller() -> None:
            for _ in range(each):
                await desk.committer.commit(desk.birth())

        await asyncio.gather(*(caller() for _ in range(callers)))
        assert await ask(db, "SELECT count(*) FROM run") == callers * each
        assert len(desk.batches) < callers * each / 3


async def test_what_fails_fails_alone(database: Databases) -> None:
    """Unknown to us, refused by the database, and nonsense: each is told, and the others are committed."""
    async with database() as db:
        desk = await desk_on(db)
        good = [desk.birth() for _ in range(20)]
        unknown = Change(facts=(of_run(RunId(uuid4()), StopAsked()),))
        nonsense = Change(facts=(Fact("nonsense", uuid4(), uuid4(), StopAsked()),))
        changes = [*good[:7], unknown, *good[7:11], nonsense, desk.birth("same"), *good[11:], desk.birth("same")]
        answers = await asyncio.gather(*map(desk.committer.commit, changes), return_exceptions=True)
        errors = [(place, type(one)) for place, one in enumerate(answers) if isinstance(one, BaseException)]
        assert errors == [(7, NotFound), (12, Broken), (len(changes) - 1, Conflict)]
        assert await ask(db, "SELECT count(*) FROM run") == len(good) + 1


async def test_what_is_said_of_one_run_happens_in_the_order_it_was_said(database: Databases) -> None:
    async with database() as db:
        desk = await desk_on(db)
        services = await desk.births(5, service=True)
        numbers = [*range(2, 12), *range(9, 0, -1)]
        said = [
            Change(facts=(of_run(run_of(service), ReplicasWanted(number)),))
            for number in numbers
            for service in services
        ]
        await asyncio.gather(*map(desk.committer.commit, said))
        for service in services:
            async with db.connection() as connection:
                notes = await connection.fetch(
                    "SELECT note FROM journal WHERE id = $1 AND event = 'ReplicasWanted' ORDER BY seq", run_of(service)
                )
            assert [row["note"] for row in notes] == [f"{number} replicas wanted" for number in numbers]


@pytest.mark.parametrize("held", [1, LANES + 1])
async def test_a_run_that_another_replica_holds_waits_and_holds_up_nobody_else(database: Databases, held: int) -> None:
    async with database() as db:
        desk = await desk_on(db)
        births = await desk.births(held + 3)
        busy, free = births[:held], births[held:]
        async with db.transaction() as other:
            await other.fetch("SELECT FROM run WHERE id = ANY($1::uuid[]) FOR UPDATE", [run_of(one) for one in busy])
            stops = []
            for birth in busy:
                # One by one, so that each would have a lane of its own.
                stops.append(desk.stop(birth))
                await asyncio.sleep(0)
            async with asyncio.timeout(3.0):
                await asyncio.gather(*map(desk.stop, free), *map(desk.committer.commit, [desk.birth(), desk.birth()]))
            assert not any(stop.done() for stop in stops)
        async with asyncio.timeout(3.0):
            await asyncio.gather(*stops)
        for birth in births:
            assert await state_of(db, birth) == "TERMINATED"


@pytest.mark.parametrize("leap_ms", [0.5, 1.0, 1.5, 2.0, 2.5, 3.0])
async def test_what_falls_due_between_two_looks_at_the_clock_is_not_forgotten(
    database: Databases, monkeypatch: pytest.MonkeyPatch, leap_ms: float
) -> None:
    """On a machine so busy that milliseconds pass between one line and the next."""
    async with database() as db:
        desk = await desk_on(db)
        births = await desk.births(12)
        loop, looks = asyncio.get_running_loop(), itertools.count()
        time = loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + next(looks) * leap_ms / 1000)
        for birth in births:
            async with db.transaction() as other:
                await other.fetch("SELECT FROM run WHERE id = $1 FOR UPDATE", run_of(birth))
                stop = desk.stop(birth)
                await eventually(partial(_put_back, desk.committer), "the stop finds its run held")
            await eventually(partial(_done, stop), "the stop is committed")


async def _put_back(committer: Committer) -> bool:
    return any(one.held > 2 for one in committer._queue)


async def _done(task: "asyncio.Task[Any]") -> bool:
    return task.done()


async def test_changes_survive_lost_connections_and_happen_once(database: Databases) -> None:
    """The connection is cut again and again, also in the middle of a COMMIT: said twice, done once."""
    async with database() as db:
        desk = await desk_on(db)
        hand = await asyncpg.connect(db.url)
        cut = 0

        async def caller() -> list[Change]:
            made = []
            for _ in range(20):
                made.append(desk.birth())
                await desk.committer.commit(made[-1])
                await desk.stop(made[-1])
            return made

        async def got_through(before: int) -> bool:
            return len(desk.batches) > before or callers.done()

        dice = random.Random(1)
        callers = asyncio.gather(*(caller() for _ in range(8)))
        while not callers.done():
            cut += await hand.fetchval(HANG_UP)
            # Cut off without end, nobody could get anything through.
            await eventually(partial(got_through, len(desk.batches)), "something gets through")
            await asyncio.sleep(dice.uniform(0.0, 0.02))
        births = [birth for made in await callers for birth in made]
        await hand.close()
        assert cut > 10
        async with db.connection() as connection:
            stories = await connection.fetch(
                "SELECT id, array_agg(event ORDER BY seq) AS events FROM journal WHERE kind = 'run' GROUP BY id"
            )
        events = {row["id"]: row["events"] for row in stories}
        assert events.keys() == {run_of(birth) for birth in births}
        for story in events.values():
            assert story[0] == "Created" and story.count("Created") == story.count("StopAsked") == 1


async def test_close_waits_for_what_is_under_way_and_takes_nothing_new(database: Databases) -> None:
    async with database() as db:
        desk = await desk_on(db)
        tasks = [asyncio.create_task(desk.committer.commit(desk.birth())) for _ in range(600)]
        await asyncio.sleep(0)
        await desk.committer.close()
        assert all(task.done() for task in tasks)
        with pytest.raises(Unavailable):
            await desk.committer.commit(desk.birth())
        assert await ask(db, "SELECT count(*) FROM run") == len(tasks)


async def test_a_caller_that_goes_away_hurts_nobody(database: Databases) -> None:
    """Its HTTP request was cut off: the change may happen, and those beside it do."""
    async with database() as db:
        desk = await desk_on(db)
        births = [desk.birth() for _ in range(30)]
        tasks = [asyncio.create_task(desk.committer.commit(birth)) for birth in births]
        for leaving in (0, 11, 29):
            tasks[leaving].cancel()
        await asyncio.sleep(0)
        tasks[5].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        left = [place for place, one in enumerate(answers) if isinstance(one, asyncio.CancelledError)]
        assert left == [0, 5, 11, 29] and not any(isinstance(one, Exception) for one in answers)
        # Nor those that come after it.
        await desk.births(3)


async def test_an_error_nobody_foresaw_is_told_to_its_caller_alone(
    database: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database() as db:
        desk = await desk_on(db)
        births = [desk.birth() for _ in range(9)]

        async def breaking(tx: Connection, changes: Any, *more: Any) -> Batch:
            if births[4] in changes:
                raise KeyError("a bug")
            return await commit_batch(tx, changes, *more)

        monkeypatch.setattr(module, "commit_batch", breaking)
        async with asyncio.timeout(10.0):
            answers = await asyncio.gather(*map(desk.committer.commit, births), return_exceptions=True)
        assert [isinstance(one, Broken) for one in answers] == [place == 4 for place in range(9)]
        assert await ask(db, "SELECT count(*) FROM run") == 8


async def test_a_listener_that_breaks_leaves_nobody_waiting(database: Databases) -> None:
    """What was committed is committed, whatever those who hear of it make of it."""
    heard: list[Batch] = []

    def deaf(batch: Batch) -> None:
        heard.append(batch)
        raise KeyError("a bug")

    async with database() as db:
        desk = await desk_on(db, deaf)
        births = [desk.birth() for _ in range(3)]
        async with asyncio.timeout(3.0):
            await asyncio.gather(*map(desk.committer.commit, births))
        assert heard and await ask(db, "SELECT count(*) FROM run") == 3


TAKE = "SELECT pg_try_advisory_xact_lock($1)"


async def test_a_plan_that_another_replica_is_at_is_left_to_it(database: Databases) -> None:
    async with database() as db:
        desk = await desk_on(db)
        birth = desk.birth()

        async def plan(tx: Connection, now: float) -> list[Change]:
            return [birth]

        async with db.transaction() as other:
            assert await other.fetchval(TAKE, 7) and await desk.committer.commit_planned(7, plan) is None
        planned = await desk.committer.commit_planned(7, plan)
        assert planned is not None and [change for change, answer in planned if answer] == [birth]
        await eventually(lambda: ask(db, "SELECT count(*) FROM run"), "it is there")


async def test_a_planner_that_is_cancelled_or_cut_off_locks_nobody_out(database: Databases) -> None:
    async with database() as db:
        desk = await desk_on(db)
        planning = asyncio.Event()

        async def long(tx: Connection, now: float) -> list[Change]:
            planning.set()
            await asyncio.sleep(60)
            return []

        async def cut_off(tx: Connection, now: float) -> list[Change]:
            with suppress(asyncpg.PostgresError):
                await tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return [desk.birth()]

        task = asyncio.create_task(desk.committer.commit_planned(7, long))
        await planning.wait()
        task.cancel()
        await asyncio.wait([task])
        with pytest.raises(ConnectionLost):
            await desk.committer.commit_planned(7, cut_off)
        async with db.transaction() as other:
            assert await other.fetchval(TAKE, 7)


async def test_what_breaks_a_plan_fails_alone(database: Databases) -> None:
    """One row that nobody can read and one that PostgreSQL refuses, among others that a planner speaks to."""
    async with database() as db:
        desk = await desk_on(db)
        births = await desk.births(9)
        async with db.transaction() as tx:
            await tx.execute("UPDATE run SET policy = '{\"nonsense\": 1}' WHERE id = $1", run_of(births[2]))
            await tx.execute(f"ALTER TABLE run ADD CHECK (state <> 'TERMINATED' OR id <> '{run_of(births[7])}')")
        stops = [Change(facts=(of_run(run_of(birth), StopAsked()),)) for birth in births]
        unknown = Change(facts=(of_run(RunId(uuid4()), StopAsked()),))

        async def plan(tx: Connection, now: float) -> list[Change]:
            return [*stops, unknown]

        before = len(desk.batches)
        planned = await desk.committer.commit_planned(7, plan)
        assert planned is not None and [change for change, _ in planned] == [*stops, unknown]
        errors = {place: type(answer.error) for place, (_, answer) in enumerate(planned) if answer and answer.error}
        assert errors == {2: Broken, 7: Broken, 9: NotFound}
        for place, birth in enumerate(births):
            assert await state_of(db, birth) == ("SUBMITTED" if place in (2, 7) else "TERMINATED")
        heard = {moved.after.id for batch in desk.batches[before:] for moved in batch.moved if moved.kind == "run"}
        assert heard == {run_of(birth) for place, birth in enumerate(births) if place not in (2, 7)}


async def test_a_plan_that_is_committed_in_parts_is_still_one_transaction_under_its_lock(database: Databases) -> None:
    """Those who count slots before they give them must not be counted beside, also when one of them is broken."""
    async with database() as db:
        desk = await desk_on(db)
        births = await desk.births(4)
        async with db.transaction() as tx:
            await tx.execute("UPDATE run SET policy = '{\"nonsense\": 1}' WHERE id = $1", run_of(births[0]))
        looks: list[tuple[bool, int]] = []

        async def plan(tx: Connection, now: float) -> list[Change]:
            async with db.transaction() as other:
                taken: bool = await other.fetchval(TAKE, 7)
            looks.append((taken, await tx.fetchval("SELECT count(*) FROM run WHERE state = 'TERMINATED'")))
            return [Change(facts=(of_run(run_of(birth), StopAsked()),)) for birth in births]

        await desk.committer.commit_planned(7, plan)
        assert looks == [(False, 0), (False, 0)], "each plan was made under the lock, and none on top of another's half"


async def test_a_plan_that_breaks_in_the_making_says_so(database: Databases) -> None:
    async with database() as db:
        desk = await desk_on(db)

        async def plan(tx: Connection, now: float) -> list[Change]:
            raise KeyError("a bug")

        with pytest.raises(KeyError):
            await desk.committer.commit_planned(7, plan)
