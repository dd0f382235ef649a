"""Many workers speak at once and few transactions are made; who waits for a task gets the first, and gets it once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from stoker.core.errors import Unavailable
from stoker.core.fit import Asker, Room
from stoker.core.graph import Edge, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.task import AVAILABLE, INACTIVE, State
from stoker.engine.muster import MOST_WORDS, Muster, share
from stoker.engine.swarm import Heard, Swarm, Word
from stoker.store import task_kind
from stoker.store.claim import Ask, Work
from stoker.store.database import Database
from stoker.store.report import End
from stoker.store.task import Draft
from stoker.store.worker import Profile
from tests.conftest import Databases
from tests.engine.conftest import ask as asked
from tests.engine.conftest import eventually

PROJECT = ProjectId(UUID(int=0xC0FFEE))
ANN, BOB, CID = WORKERS = [WorkerId(UUID(int=0xA00 + n)) for n in range(3)]
A, B, C = (TaskId(UUID(int=n)) for n in range(1, 4))
LONG_S = 60.0
"""Longer than any test takes."""

MANY_WORKERS = """
INSERT INTO worker (id, project_id, name, created_at, seen_at, lease_until)
SELECT id, $1, 'w', 0, 0, 0 FROM unnest($2::uuid[]) AS id
"""


class Still:
    """A clock that stands until somebody moves it."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at


class Watched(Swarm):
    """Counts its transactions with workers, and may be held back or fail."""

    rounds = 0
    slow: Callable[[], Awaitable[object]] | None = None
    """Awaited between the commit and the answer."""
    broken: Exception | None = None

    async def hear(self, words: Sequence[Word], waiting: Sequence[Ask] = ()) -> tuple[list[Heard], list[list[Work]]]:
        self.rounds += 1
        if self.broken is not None:
            raise self.broken
        answer = await super().hear(words, waiting)
        if self.slow is not None:
            await self.slow()
        return answer


@asynccontextmanager
async def muster_on(db: Database, clock: Still | None = None) -> AsyncIterator[tuple[Watched, Muster]]:
    swarm = Watched(db, clock or Still())
    muster = Muster(swarm)
    swarm.opened = muster.heard
    for worker in WORKERS:
        await swarm.register(worker, PROJECT, Profile("w"))
    yield swarm, muster
    await muster.close()


def draft(id: TaskId, state: State = AVAILABLE, **fields: Any) -> Draft:
    return Draft(id, PROJECT, state, command='"true"', **fields)


def claim(worker: WorkerId, number: int = 1, most: int = 1, time_left_s: float | None = None) -> Word:
    total = Room({"cpus": 4})
    return Word(worker, ask=Ask(worker, number, Asker(total, total, most), time_left_s))


def tasks(heard: Heard) -> list[int]:
    return [work.held.task.int for work in heard.works]


async def standing(muster: Muster, count: int) -> None:
    async def stand() -> bool:
        return muster.standing == count and muster._rounds is None

    await eventually(stand, f"{count} claims stand")


def said(muster: Muster, word: Word, wait_s: float = LONG_S) -> "asyncio.Task[Heard]":
    return asyncio.create_task(muster.say(word, wait_s))


@pytest.mark.parametrize(
    ("queued", "answered", "taken"),
    [(0, 3, 0), (1, 0, 1), (1, 1, 1), (16, 0, 8), (8, 8, 8), (15, 1, 8), (3, 8, 3), (9, 64, 9), (200, 64, MOST_WORDS)],
)
def test_a_round_takes_half_of_those_who_speak(queued: int, answered: int, taken: int) -> None:
    """The other half is read and answered meanwhile; nobody waits for somebody who has not come back."""
    assert share(queued, answered) == taken


async def test_what_many_say_at_once_is_said_to_the_database_together(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        await swarm.create([draft(TaskId(UUID(int=n))) for n in range(1, 301)])
        heard = await asyncio.gather(*(muster.say(claim(WORKERS[n % 3], n)) for n in range(300)))
        assert sorted(task for one in heard for task in tasks(one)) == list(range(1, 301))
        assert swarm.rounds <= 300 // MOST_WORDS + 2


async def test_two_thousand_claimers_on_ten_tasks_have_exactly_ten_winners(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        many = [WorkerId(UUID(int=0xF0000 + n)) for n in range(2000)]
        async with db.transaction() as tx:
            await tx.execute(MANY_WORKERS, PROJECT, many)
        claims = [said(muster, claim(worker)) for worker in many]
        await standing(muster, 2000)
        await swarm.create([draft(TaskId(UUID(int=n))) for n in range(1, 11)])
        await standing(muster, 1990)
        await muster.close()
        heard = await asyncio.gather(*claims)
        assert sorted(task for one in heard for task in tasks(one)) == list(range(1, 11))
        assert await asked(db, "SELECT count(DISTINCT worker_id) FROM task WHERE state = 'running'") == 10


async def test_a_claim_that_stands_is_served_by_the_transaction_that_releases_a_task(database: Databases) -> None:
    """A chain costs one commit a link, also while others stand and get nothing."""
    async with database() as db, muster_on(db) as (swarm, muster):
        await swarm.create([draft(A), draft(B, INACTIVE), draft(C, INACTIVE)], [Edge(A, B), Edge(B, C)])
        (first,) = (await muster.say(claim(ANN))).works
        waiting = [said(muster, claim(BOB)), said(muster, claim(CID))]
        await standing(muster, 2)
        before = swarm.rounds
        await muster.say(Word(ANN, ends=[End(first.held, 0)]))
        (second,) = (await waiting[0]).works
        await muster.say(Word(BOB, ends=[End(second.held, 0)]))
        assert (second.held.task, tasks(await waiting[1])) == (B, [C.int])
        await standing(muster, 0)
        assert swarm.rounds == before + 2


async def test_a_report_may_claim_the_task_that_it_releases(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        await swarm.create([draft(A), draft(B, INACTIVE)], [Edge(A, B)])
        (first,) = (await muster.say(claim(ANN))).works
        before = swarm.rounds
        word = claim(ANN, 2)
        heard = await muster.say(Word(ANN, ends=[End(first.held, 0)], ask=word.ask))
        assert (tasks(heard), swarm.rounds) == ([B.int], before + 1)


async def test_a_task_that_somebody_creates_is_handed_to_who_stands(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        waiting = said(muster, claim(ANN))
        await standing(muster, 1)
        await swarm.create([draft(A)])
        assert tasks(await waiting) == [A.int]


async def test_a_claim_that_stands_is_no_sign_of_life(database: Databases) -> None:
    """A machine loses its power while it waits for a task: its connection is open, and nobody is at the other end."""
    clock = Still()
    async with database() as db, muster_on(db, clock) as (swarm, muster):
        waiting = said(muster, claim(ANN))
        await standing(muster, 1)
        clock.at += swarm.lease_s - 1
        await muster.say(claim(BOB))
        await muster.once()
        await standing(muster, 1)
        clock.at += 2
        await swarm.create([draft(A)])
        await standing(muster, 1)
        assert tasks(await muster.say(claim(BOB, 2))) == [A.int]
        # It was there after all.
        await swarm.create([draft(B)])
        await swarm.heartbeat(ANN, [], 0)
        await muster.once()
        assert tasks(await waiting) == [B.int]


async def test_what_another_replica_opened_is_found_when_it_says_so(database: Databases) -> None:
    """Also by those who do not wait: what was empty is not believed to be empty for ever."""
    async with database() as db, muster_on(db) as (_, muster):
        waiting = said(muster, claim(ANN))
        await standing(muster, 1)
        other = Swarm(db, Still())
        await other.create([draft(A)])
        await muster.once()
        assert tasks(await waiting) == [A.int]
        assert tasks(await muster.say(claim(BOB))) == []
        await other.create([draft(B)])
        assert (await muster.once()).did == 0
        assert tasks(await muster.say(claim(BOB, 2))) == [B.int]


async def test_a_newer_claim_of_a_worker_replaces_its_older_one(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        older = said(muster, claim(ANN, 1))
        await standing(muster, 1)
        newer = said(muster, claim(ANN, 2))
        assert tasks(await older) == []
        await standing(muster, 1)
        await swarm.create([draft(A)])
        assert tasks(await newer) == [A.int]
        assert await asked(db, "SELECT claim FROM task") == 2


async def test_of_two_claims_in_one_round_the_later_one_stands_and_the_earlier_is_answered(
    database: Databases,
) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        older, newer = said(muster, claim(ANN, 1)), said(muster, claim(ANN, 2))
        assert tasks(await asyncio.wait_for(older, 10)) == []
        await swarm.create([draft(A)])
        assert tasks(await newer) == [A.int]


async def test_news_without_a_claim_leaves_the_claim_of_its_worker_standing(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        waiting = said(muster, claim(ANN))
        await standing(muster, 1)
        assert (await muster.say(Word(ANN, ends=[End(Held(A, 1), 0)]))).refused == [(Held(A, 1), None)]
        assert muster.standing == 1
        await swarm.create([draft(A)])
        assert tasks(await waiting) == [A.int]


async def test_a_claim_whose_time_is_over_gets_nothing_and_stands_no_more(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        assert await muster.say(claim(ANN), 0.05) == Heard(True, [], [])
        assert muster.standing == 0
        await swarm.create([draft(A)])
        assert await asked(db, "SELECT state FROM task") == "available"
        assert tasks(await muster.say(claim(BOB))) == [A.int]


async def test_a_claim_whose_time_is_over_while_it_is_served_gets_what_is_its_own(database: Databases) -> None:
    """The task was handed out and committed; only the answer is on its way. Nobody else would run it for a while."""
    async with database() as db, muster_on(db) as (swarm, muster):
        waiting = said(muster, claim(ANN), 0.3)
        await standing(muster, 1)
        answer = asyncio.Event()
        swarm.slow = answer.wait
        await swarm.create([draft(A)])
        await asyncio.wait([waiting], timeout=0.6)
        assert not waiting.done()
        answer.set()
        assert tasks(await waiting) == [A.int]
        assert muster.standing == 0


async def test_a_claim_whose_time_is_over_in_a_round_that_has_nothing_for_it_is_answered(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        waiting = said(muster, claim(ANN), 0.3)
        await standing(muster, 1)
        answer = asyncio.Event()
        swarm.slow = answer.wait
        speaking = asyncio.create_task(muster.say(Word(BOB)))
        await asyncio.wait([waiting], timeout=0.6)
        answer.set()
        assert tasks(await asyncio.wait_for(waiting, 10)) == []
        await speaking
        assert muster.standing == 0


async def test_who_went_away_before_its_turn_gets_no_task(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        await swarm.create([draft(A)])
        answer = asyncio.Event()
        swarm.slow = answer.wait
        first = asyncio.create_task(muster.say(Word(BOB)))
        await eventually(lambda: _true(swarm.rounds == 1), "the first round is on its way")
        gone = [said(muster, claim(ANN)), asyncio.create_task(muster.say(claim(CID)))]
        await asyncio.sleep(0)
        for one in gone:
            one.cancel()
        await asyncio.gather(*gone, return_exceptions=True)
        answer.set()
        await first
        await standing(muster, 0)
        assert swarm.rounds == 2
        assert await asked(db, "SELECT state FROM task") == "available"


async def _true(value: bool) -> bool:
    return value


async def test_one_word_that_cannot_be_stored_fails_alone(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        await swarm.create([draft(A), draft(B), draft(C)])
        (first,), (second,) = [(await muster.say(claim(worker))).works for worker in (ANN, BOB)]
        answers = await asyncio.gather(
            muster.say(Word(ANN, ends=[End(first.held, 2**40)])),
            muster.say(Word(BOB, ends=[End(second.held, 0)])),
            muster.say(claim(CID)),
            return_exceptions=True,
        )
        assert isinstance(answers[0], asyncpg.DataError | OverflowError | ValueError)
        assert answers[1] == Heard(True, [], [])
        assert isinstance(answers[2], Heard) and tasks(answers[2]) == [C.int]
        async with db.connection() as connection:
            states = [row["state"] for row in await connection.fetch("SELECT state FROM task ORDER BY id")]
        assert states == ["running", "terminated", "running"]


async def test_when_the_database_is_away_who_speaks_is_told_and_who_stands_goes_on_standing(
    database: Databases,
) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        waiting = said(muster, claim(ANN))
        await standing(muster, 1)
        swarm.broken = Unavailable("the database is away")
        with pytest.raises(Unavailable):
            await muster.say(claim(BOB))
        assert muster.standing == 1
        swarm.broken = None
        await swarm.create([draft(A)])
        assert tasks(await waiting) == [A.int]


async def test_an_unknown_worker_is_told_so_and_does_not_wait(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        await swarm.create([draft(A)])
        stranger = WorkerId(UUID(int=0xDEAD))
        answers = await asyncio.gather(muster.say(claim(stranger), LONG_S), muster.say(claim(ANN)))
        assert [answer.known for answer in answers] == [False, True]
        assert [tasks(answer) for answer in answers] == [[], [A.int]]


async def test_refused_news_is_answered_at_once_though_its_claim_would_wait(database: Databases) -> None:
    async with database() as db, muster_on(db) as (_, muster):
        word = Word(ANN, ends=[End(Held(A, 1), 0)], ask=claim(ANN).ask)
        assert (await asyncio.wait_for(muster.say(word, LONG_S), 10)).refused == [(Held(A, 1), None)]


async def test_closing_answers_everybody(database: Databases) -> None:
    async with database() as db, muster_on(db) as (_, muster):
        waiting = [said(muster, claim(worker)) for worker in (ANN, BOB)]
        await standing(muster, 2)
        speaking = said(muster, Word(CID))
        await asyncio.sleep(0)
        await muster.close()
        assert await asyncio.gather(*waiting, speaking) == [Heard(True, [], [])] * 3


async def test_only_so_many_tasks_with_a_key_run_over_all_workers(database: Databases) -> None:
    """Two replicas and three workers; whenever one ends, one of those who stand gets the next in that transaction."""
    async with database() as db, muster_on(db) as (swarm, muster):
        async with db.transaction() as tx:
            await task_kind.set_keys(tx, PROJECT, {"licence": 2})
        await swarm.create([draft(TaskId(UUID(int=n)), key="licence") for n in range(1, 7)])
        other = Muster(Swarm(db, Still()))
        heard = await asyncio.gather(
            muster.say(claim(ANN, most=9)), other.say(claim(BOB, most=9)), muster.say(claim(CID, most=9))
        )
        running = [(worker, work.held) for worker, one in zip(WORKERS, heard, strict=True) for work in one.works]
        assert len(running) == 2
        for number in range(2, 6):
            worker, held = running.pop(0)
            waiting = {one: said(muster, claim(one, number)) for one in WORKERS if one != worker}
            await standing(muster, 2)
            await muster.say(Word(worker, ends=[End(held, 0)]))
            await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
            running += [(one, waiter.result().works[0].held) for one, waiter in waiting.items() if waiter.done()]
            assert await asked(db, "SELECT count(*) FROM task WHERE state = 'running'") == 2
            for waiter in waiting.values():
                waiter.cancel()
            await asyncio.gather(*waiting.values(), return_exceptions=True)
        await other.close()


async def test_a_worker_with_little_time_left_stands_while_others_take_what_is_long(database: Databases) -> None:
    async with database() as db, muster_on(db) as (swarm, muster):
        short = said(muster, claim(ANN, time_left_s=100.0))
        await standing(muster, 1)
        await swarm.create([draft(A, estimated_runtime=120.0), draft(B, estimated_runtime=3600.0)])
        await standing(muster, 1)
        assert tasks(await muster.say(claim(BOB, most=9))) == [A.int, B.int]
        await swarm.create([draft(C, estimated_runtime=99.0)])
        assert tasks(await short) == [C.int]
