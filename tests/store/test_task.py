"""Swarm tasks on a real PostgreSQL: the SQL does what the table says, whatever the history."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.core.errors import Conflict, NotFound, UserError
from stoker.core.fit import Asker, Room
from stoker.core.graph import Edge, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.machine import Machine, Row
from stoker.core.task import AVAILABLE, ENDED, INACTIVE, OPEN_TO_EDGES, PENDING_CANCELLATION, RUNNING, TASK, Task
from stoker.store import continuation, report, task, task_kind, worker
from stoker.store.database import Database
from stoker.store.report import End
from tests.store.task_model import (
    ANN,
    BOB,
    KEYS,
    KINDS,
    LEASE_S,
    NOW,
    PROJECT,
    WORKERS,
    Databases,
    Twins,
    claim_all,
    draft,
    end,
    states,
    swarm,
    task_id,
)


class History:
    """One random life of a graph; each choice is about what is there now, so that most acts do something."""

    def __init__(self, twins: Twins, salt: int) -> None:
        self.twins, self.salt, self.acts, self.random = twins, salt, 0, Random(salt)

    async def act(self, seed: int) -> None:
        self.acts += 1
        if seed == 0:
            # Nothing: what hypothesis shrinks to.
            return
        # Hypothesis likes to repeat itself; the place in the history makes equal seeds differ.
        self.random.seed(f"{self.salt}/{self.acts}/{seed}")
        self.twins.now += self.random.choice([1.0, 1.0, 1.0, 1.0, LEASE_S])
        await getattr(self, self.random.choice(ACTS))()
        await self.twins.compare()

    def some(self, limit: int = 3) -> list[TaskId]:
        tasks = self.twins.graph.tasks
        unended = sorted(id for id, one in tasks.items() if one.state not in ENDED)
        known = unended if unended and self.random.random() < 0.8 else sorted(tasks)
        return self.random.choices(known, k=self.random.randint(1, limit)) if known else []

    def held(self) -> tuple[WorkerId, list[Held]]:
        """A worker and attempts: mostly its live ones, sometimes past ones and those of others."""
        graph = self.twins.graph
        worker = self.random.choice([*WORKERS, *3 * [one.worker for one in graph.tasks.values() if one.worker]])
        live = [held for held in graph.executions if graph.tasks[held.task].worker == worker]
        held = self.random.sample(live, self.random.randint(min(1, len(live)), len(live)))
        if self.random.random() < 0.2:
            held += [one for one in sorted(self.twins.claimed) if one not in held and self.random.random() < 0.3]
        return worker, held

    def edges(self, ends: list[TaskId]) -> list[Edge]:
        chosen = [Edge(*self.random.choices(ends, k=2)) for _ in range(self.random.randint(0, 5))]
        if self.random.random() < 0.2:
            return chosen
        # Most random edges would close a cycle or name what has moved on; what users ask for mostly makes sense.
        tasks = self.twins.graph.tasks
        downhill = [Edge(min(edge), max(edge)) for edge in chosen if edge.source != edge.target]
        return [
            edge
            for edge in downhill
            if (edge.source not in tasks or tasks[edge.source].state in OPEN_TO_EDGES)
            and (edge.target not in tasks or tasks[edge.target].state is INACTIVE)
        ]

    async def create(self) -> None:
        number = len(self.twins.graph.tasks)
        ids = [task_id(number + n) for n in range(1, 1 + self.random.randint(1, 5))]
        edges = self.edges(self.some(3) + ids)
        waiting = {edge.target for edge in edges} if self.random.random() < 0.9 else set()
        tasks = [
            Task(
                id,
                INACTIVE if id in waiting else self.random.choice([INACTIVE, AVAILABLE, AVAILABLE]),
                self.twins.now,
                has_command=self.random.random() < 0.75,
                priority=self.random.randint(0, 1),
                max_retry_count=self.random.choice([0, 1, 2, 2, 4]),
                crash_limit=self.random.choice([1, 2, 2, 5]),
            )
            for id in ids
        ]
        await self.twins.create(tasks, edges, {id: self.random.choice(list(KINDS)) for id in ids})

    async def claim(self) -> None:
        """Of one worker or of several at once, in the order in which they came."""
        workers = self.random.sample(WORKERS, self.random.choice([1, 1, 2, 3]))
        await self.twins.claim({worker: self.asker() for worker in workers})

    def asker(self) -> Asker:
        total = Room({"cpus": self.random.randint(1, 4), "memory": 200}, (1.0,) * self.random.randint(0, 2))
        free = self.random.choice([total, Room({"cpus": 1, "memory": 100}, (0.5,) * len(total.gpus)), Room()])
        return Asker(total, free, self.random.randint(1, 4), self.random.choice([0, 0, 1, 2]))

    async def report(self) -> None:
        """Of one worker or of two, who may say it twice."""
        pending = {one.id for one in self.twins.graph.tasks.values() if one.state is PENDING_CANCELLATION}
        said = []
        for _ in range(self.random.randint(1, 2)):
            worker, held = self.held()
            for one in held:
                stopped = self.random.random() < (0.5 if one.task in pending else 0.1)
                said.append((worker, End(one, self.random.choice([0, 0, 1, None]), stopped)))
        await self.twins.report(said)

    async def give_back(self) -> None:
        worker, held = self.held()
        await self.twins.give_back([(worker, one) for one in held])

    async def heartbeat(self) -> None:
        worker, held = self.held()
        await self.twins.heartbeat(worker, held, self.random.randint(0, self.twins.claims[worker]))

    async def expire(self) -> None:
        await self.twins.expire()

    async def lose_all(self) -> None:
        """Nobody was heard for a while: how tasks come to their limit of crashes."""
        self.twins.now += LEASE_S
        await self.twins.expire()

    async def let_go(self) -> None:
        held = [id for id, one in self.twins.graph.tasks.items() if one.held]
        await self.twins.let_go(held[:2] + self.some(1))

    async def fold(self) -> None:
        await self.twins.fold()

    async def cancel(self) -> None:
        running = [one.id for one in self.twins.graph.tasks.values() if one.state is RUNNING]
        await self.twins.cancel(running[:2] if running and self.random.random() < 0.5 else self.some(2))

    async def make_available(self) -> None:
        asleep = [id for id, one in self.twins.graph.tasks.items() if one.state is INACTIVE]
        await self.twins.make_available(sorted(set(self.some(2) if self.random.random() < 0.3 else asleep[:1])))

    async def link(self) -> None:
        if ends := self.some(4):
            await self.twins.add(self.edges(ends))

    async def unlink(self) -> None:
        tasks, edges = self.twins.graph.tasks, sorted(self.twins.graph.edges)
        live = [edge for edge in edges if tasks[edge.target].state is INACTIVE]
        if known := live if live and self.random.random() < 0.8 else edges:
            await self.twins.remove(self.random.choices(known, k=self.random.randint(1, 2)))


OFTEN = ["create", "claim", "claim", "report", "report", "link", "cancel"]
SELDOM = ["create", "unlink", "make_available", "give_back", "heartbeat", "expire", "lose_all", "let_go", "fold"]
ACTS = [*OFTEN, *OFTEN, *SELDOM]
MOST_CAMPAIGNS = 5


def test_the_sql_does_what_the_table_says(database: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random histories through both; states, counts, edges, executions and figures are the same after each act."""
    visited: set[Row | None] = set()

    def recorded(machine: Machine[Task], *args: Any) -> Any:
        step = plain(machine, *args)
        visited.add(step.row)
        return step

    plain = Machine.step
    monkeypatch.setattr(Machine, "step", recorded)

    async def play(db: Database, salt: int, seeds: list[int]) -> None:
        async with db.connection() as conn:
            transaction = conn.transaction()
            await transaction.start()
            try:
                twins = Twins(conn)
                await task_kind.set_keys(conn, PROJECT, KEYS)
                for worker in WORKERS:
                    await twins.register(worker)
                history = History(twins, salt)
                for seed in seeds:
                    await history.act(seed)
            finally:
                await transaction.rollback()

    with opened(database) as (runner, db):

        @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.integers(0, 2**64), st.lists(st.integers(0, 9), min_size=40, max_size=80))
        def histories(salt: int, seeds: list[int]) -> None:
            runner.run(play(db, salt, seeds))

        # Most often one campaign visits every row; what is rare may take another one.
        for _ in range(MOST_CAMPAIGNS):
            histories()
            if visited.issuperset(TASK.rows):
                break
    assert [row.name for row in TASK.rows if row not in visited] == []


@contextmanager
def opened(database: Databases) -> Iterator[tuple[asyncio.Runner, Database]]:
    """One database and one loop for all examples of a plain test."""
    with asyncio.Runner() as runner:
        block = database()
        try:
            yield runner, runner.run(block.__aenter__())
        finally:
            runner.run(block.__aexit__(None, None, None))


async def test_a_late_update_is_refused_with_the_current_state(database: Databases) -> None:
    """A worker frozen past its lease wakes up, while another one runs its task."""
    async with swarm(database, [draft(1, max_retry_count=3)]) as db:
        (held,) = await claim_all(db, ANN)
        async with db.transaction() as tx:
            await worker.expire(tx, NOW + LEASE_S)
        await claim_all(db, BOB)
        assert (await end(db, ANN, [held])).refused == {(ANN, held): RUNNING}
        async with db.transaction() as tx:
            assert (await worker.heartbeat(tx, ANN, [held], LEASE_S, NOW)).gone == [held]


async def test_an_attempt_never_begins_before_the_one_before_it_was_lost(database: Databases) -> None:
    """A round begins, waits for the commit that takes a task away from a lost worker, and hands that task out: by the
    clock its claim is older than the loss. So may be the word of a server whose clock was a little behind."""
    async with swarm(database, [draft(1, max_retry_count=3)]) as db:
        await claim_all(db, ANN)
        async with db.transaction() as tx:
            await worker.expire(tx, NOW + LEASE_S)
        await claim_all(db, BOB)
        async with db.transaction() as tx:
            await worker.leave(tx, BOB, NOW, lost=True)
            first, second = await tx.fetch("SELECT claimed_at, time_terminated FROM execution ORDER BY attempt")
        assert first["time_terminated"] == NOW + LEASE_S
        assert second["time_terminated"] >= second["claimed_at"] >= first["time_terminated"]


async def test_a_late_worker_that_was_not_given_up_keeps_its_tasks(database: Databases) -> None:
    async with swarm(database, [draft(1)]) as db:
        held = await claim_all(db, ANN)
        async with db.transaction() as tx:
            await worker.heartbeat(tx, ANN, held, LEASE_S, NOW + 2 * LEASE_S)
            await worker.expire(tx, NOW + 2 * LEASE_S)
        assert await states(db) == {1: "running"}


@pytest.mark.parametrize(
    ("edges", "error"),
    [
        ([(10, 11), (11, 12), (12, 10)], UserError),
        ([(10, 10)], UserError),
        ([(3, 11), (11, 3)], UserError),
        ([(10, 99)], NotFound),
        ([(10, 1)], Conflict),
        ([(11, 2), (3, 11)], UserError),
        ([(4, 12)], Conflict),
    ],
    ids=[
        "cycle",
        "self edge",
        "cycle with one old task",
        "unknown",
        "not inactive",
        "cycle through old tasks",
        "ended source",
    ],
)
async def test_a_graph_that_cannot_be_is_refused_and_nothing_of_it_is_stored(
    database: Databases, edges: list[tuple[int, int]], error: type[UserError]
) -> None:
    drafts = [draft(1), draft(2, INACTIVE), draft(3, INACTIVE), task.Draft(task_id(4), PROJECT)]
    async with swarm(database, drafts, (2, 3)) as db:
        before = await states(db)
        with pytest.raises(error):
            async with db.transaction() as tx:
                new = [draft(n, INACTIVE) for n in (10, 11, 12)]
                await task.create(tx, new, [Edge(task_id(a), task_id(b)) for a, b in edges], NOW)
        assert await states(db) == before


async def test_tasks_of_another_project_are_neither_claimed_nor_continued_with(database: Databases) -> None:
    other = ProjectId(UUID(int=0xBEEF))
    stranger = task.Draft(task_id(2), other, command='"true"')
    async with swarm(database, [draft(1, INACTIVE)]) as db:
        async with db.transaction() as tx:
            await task.create(tx, [stranger], [], NOW)
        assert await claim_all(db) == []
        with pytest.raises(UserError, match="project"):
            async with db.transaction() as tx:
                await continuation.add_continuations(tx, [Edge(task_id(2), task_id(1))])


async def test_a_chain_of_barriers_opens_to_its_end(database: Databases) -> None:
    drafts = [task.Draft(task_id(n), PROJECT, AVAILABLE if n == 1 else INACTIVE) for n in range(1, 50)]
    async with swarm(database, [*drafts, draft(50, INACTIVE)], *((n, n + 1) for n in range(1, 50))) as db:
        found = await states(db)
        assert found.pop(50) == "available"
        assert set(found.values()) == {"terminated"}


async def test_a_repeated_give_back_does_not_take_the_next_attempt_away(database: Databases) -> None:
    """The answer to a give-back is lost, the worker claims the task again, and the repeated message arrives."""
    async with swarm(database, [draft(1)]) as db:
        (first,) = await claim_all(db)
        async with db.transaction() as tx:
            back = await report.give_back(tx, [(ANN, first)], NOW)
            assert (back.available, back.refused) == (1, {})
        await claim_all(db)
        async with db.transaction() as tx:
            back = await report.give_back(tx, [(ANN, first)], NOW)
            assert (back.available, back.refused) == (0, {(ANN, first): RUNNING})
        assert await states(db) == {1: "running"}


INDEXED = """
SELECT i.indrelid::regclass::text || '.' || a.attname
FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
"""


async def test_the_indices_that_the_document_names_are_there(database: Databases) -> None:
    """Of states, continuations from both sides, estimated run times and requested resources."""
    async with database() as db, db.connection() as connection:
        found = {row[0] for row in await connection.fetch(INDEXED)}
    assert {
        "task.state", "continuation.source", "continuation.target", "task_spec.estimated_runtime",
        "task_spec.requested_resources",
    } <= found  # fmt: skip
