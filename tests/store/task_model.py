"""What the tests of swarm tasks share: small swarms, and twins that do each thing to the SQL and to the pure graph."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from stoker.core.errors import UserError
from stoker.core.graph import Edge, Graph, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.machine import Event
from stoker.core.task import (
    AVAILABLE,
    ENDED,
    HELD,
    INACTIVE,
    PENDING_CANCELLATION,
    Ended,
    GivenBack,
    State,
    Stopped,
    Task,
)
from stoker.store import claim, continuation, task
from stoker.store.claim import End
from stoker.store.database import Connection, Database

PROJECT = ProjectId(UUID(int=0xC0FFEE))
LEASE_S = 10.0
Databases = Callable[[], AbstractAsyncContextManager[Database]]
NOW = 1000.0
WORKERS = [WorkerId(UUID(int=0xA00 + n)) for n in range(3)]
ANN, BOB, _ = WORKERS


def task_id(n: int) -> TaskId:
    return TaskId(UUID(int=n))


@dataclass
class Twins:
    conn: Connection
    graph: Graph = field(default_factory=Graph)
    now: float = 1000.0
    leases: dict[WorkerId, float] = field(default_factory=dict)
    lost: set[WorkerId] = field(default_factory=set)
    claims: dict[WorkerId, int] = field(default_factory=dict)
    claimed: set[Held] = field(default_factory=set)
    """Every attempt that ever was, also those that were given back and left no record."""

    async def register(self, worker: WorkerId) -> None:
        await claim.register(self.conn, worker, PROJECT, "w", LEASE_S, self.now)
        self.leases[worker], self.claims[worker] = self.now + LEASE_S, 0

    async def create(self, tasks: Sequence[Task], edges: Sequence[Edge]) -> None:
        drafts = [
            task.Draft(
                one.id,
                PROJECT,
                one.state,
                command='["true"]' if one.has_command else None,
                priority=one.priority,
                max_retry_count=one.max_retry_count,
            )
            for one in tasks
        ]
        await self.both(
            lambda: task.create(self.conn, drafts, edges, self.now), lambda: self.graph.create(tasks, edges, self.now)
        )

    async def add(self, edges: Sequence[Edge]) -> None:
        await self.both(
            lambda: continuation.add_continuations(self.conn, edges),
            lambda: self.graph.add_continuations(edges, self.now),
        )

    async def remove(self, edges: Sequence[Edge]) -> None:
        await self.both(
            lambda: continuation.remove_continuations(self.conn, edges, self.now),
            lambda: self.graph.remove_continuations(edges, self.now),
        )

    async def make_available(self, ids: Sequence[TaskId]) -> None:
        await self.both(
            lambda: task.make_available(self.conn, ids, self.now), lambda: self.graph.make_available(ids, self.now)
        )

    async def cancel(self, ids: Sequence[TaskId]) -> None:
        before = {id for id, one in self.graph.tasks.items() if one.state not in (*ENDED, *HELD)}
        told = self.graph.cancel(ids, self.now)
        answer = await task.cancel(self.conn, ids, self.now)
        assert set(answer.told) == told and len(answer.told) == len(told)
        assert answer.cancelled == sum(self.graph.tasks[id].state in ENDED for id in before)

    async def claim(self, worker: WorkerId, n: int) -> None:
        self.claims[worker] += 1
        self._renewed(worker)
        work = await claim.claim(self.conn, worker, n, LEASE_S, self.now, self.claims[worker])
        self.claimed |= {one.held for one in work}
        assert [one.held for one in work] == self.graph.claim(worker, n, self.now, self.claims[worker])

    async def report(self, worker: WorkerId, ends: Sequence[End]) -> None:
        available = self._available()
        refused = []
        for held, exit_status, stopped, *_ in ends:
            event: Event = Stopped(exit_status) if stopped else Ended(exit_status)
            if not self.graph.news(worker, held, event, self.now):
                refused.append(held)
        answer = await claim.report(self.conn, worker, ends, self.now)
        assert sorted(held for held, _ in answer.refused) == sorted(refused)
        assert answer.available == len(self._available() - available)

    async def give_back(self, worker: WorkerId, unstarted: Collection[Held]) -> None:
        available = self._available()
        refused = {held for held in unstarted if not self.graph.news(worker, held, GivenBack(), self.now)}
        answer = await claim.give_back(self.conn, worker, unstarted, self.now)
        assert {held for held, _ in answer.refused} == refused
        assert answer.available == len(self._available() - available)

    async def heartbeat(self, worker: WorkerId, listed: Collection[Held], number: int) -> None:
        own = {Held(one.id, one.attempt): one for one in self.graph.tasks.values() if one.worker == worker}
        beat = await claim.heartbeat(self.conn, worker, listed, LEASE_S, self.now, number)
        assert beat.gone == sorted(set(listed) - own.keys())
        pending = {held for held, one in own.items() if one.state is PENDING_CANCELLATION}
        assert sorted(beat.unwanted) == sorted(pending & set(listed))
        self.graph.heartbeat(worker, listed, number, self.now)
        self._renewed(worker)

    async def expire(self) -> None:
        available = self._available()
        for worker, until in self.leases.items():
            if until <= self.now and worker not in self.lost:
                self.graph.lose(worker, self.now)
                self.lost.add(worker)
        answer = await claim.expire(self.conn, self.now)
        assert answer.available == len(self._available() - available)

    def _renewed(self, worker: WorkerId) -> None:
        self.leases[worker] = self.now + LEASE_S
        self.lost.discard(worker)

    async def both(self, sql: Callable[[], Awaitable[int | None]], pure: Callable[[], None]) -> None:
        """A wish that may be refused: then by both, and nothing is changed."""
        available = self._available()
        refused: UserError | None = None
        try:
            pure()
        except UserError as error:
            refused = error
        answer = None
        with suppress(UserError):
            # No savepoint: a refusal comes before the first write, so the transaction goes on.
            answer = await sql()
            assert refused is None, f"the table refuses, the SQL does not: {refused}"
            assert answer is None or answer == len(self._available() - available)
            return
        assert refused is not None, "the SQL refuses, the table does not"

    def _available(self) -> set[TaskId]:
        return {id for id, one in self.graph.tasks.items() if one.state is AVAILABLE}

    async def compare(self) -> None:
        assert await self._tasks() == {one.id: self._expected(one) for one in self.graph.tasks.values()}
        edges = {Edge(*row) for row in await self.conn.fetch("SELECT source, target FROM continuation")}
        assert edges == self.graph.edges
        rows = await self.conn.fetch("SELECT * FROM execution")
        assert {
            Held(row["task_id"], row["attempt"]): (
                row["worker_id"],
                row["claimed_at"],
                row["time_terminated"],
                row["outcome"],
                row["exit_status"],
            )
            for row in rows
        } == {
            held: (one.worker, one.claimed_at, one.terminated_at, one.outcome and one.outcome.value, one.exit_status)
            for held, one in self.graph.executions.items()
        }
        self._check_counts()

    async def _tasks(self) -> dict[TaskId, dict[str, Any]]:
        found = {}
        for row in await self.conn.fetch("SELECT * FROM task"):
            kept = dict(row)
            for name in ("project_id", "created_at"):
                del kept[name]
            if kept["state"] != "inactive":
                # Which of its dependencies had ended when it was cancelled depends on the order inside one request.
                del kept["pending_dependency_count"]
            found[row["id"]] = kept
        return found

    @staticmethod
    def _expected(one: Task) -> dict[str, Any]:
        expected: dict[str, Any] = {
            "id": one.id,
            "state": one.state.value,
            "entered_at": one.entered_at,
            "has_command": one.has_command,
            "priority": one.priority,
            "max_retry_count": one.max_retry_count,
            "attempt": one.attempt,
            "retry_count": one.retry_count,
            "crash_count": one.crash_count,
            "worker_id": one.worker,
            "claim": one.claim,
        }
        if one.state is INACTIVE:
            expected["pending_dependency_count"] = one.pending_dependency_count
        return expected

    def _check_counts(self) -> None:
        """Invariant 5: what an inactive task waits for is unended, and is all that it waits for."""
        for one in self.graph.tasks.values():
            if one.state is INACTIVE:
                waits_for = {e.source for e in self.graph.edges if e.target == one.id}
                unended = [id for id in waits_for if self.graph.tasks[id].state not in ENDED]
                assert one.pending_dependency_count == len(unended), one


@asynccontextmanager
async def swarm(database: Databases, drafts: list[task.Draft], *edges: tuple[int, int]) -> AsyncIterator[Database]:
    """A database with these tasks, these edges between their numbers, and the workers."""
    async with database() as db:
        async with db.transaction() as tx:
            for worker in WORKERS:
                await claim.register(tx, worker, PROJECT, "w", LEASE_S, NOW)
            await task.create(tx, drafts, [Edge(task_id(a), task_id(b)) for a, b in edges], NOW)
        yield db


def draft(n: int, state: State = AVAILABLE, **fields: Any) -> task.Draft:
    return task.Draft(task_id(n), PROJECT, state, command='"true"', **fields)


async def states(db: Database) -> dict[int, str]:
    async with db.connection() as conn:
        return {row["id"].int: row["state"] for row in await conn.fetch("SELECT id, state FROM task ORDER BY id")}


async def claim_all(db: Database, worker: WorkerId = ANN, n: int = 1000) -> list[Held]:
    async with db.transaction() as tx:
        return [work.held for work in await claim.claim(tx, worker, n, LEASE_S, NOW)]


async def end(db: Database, worker: WorkerId, held: list[Held], exit_status: int = 0) -> claim.Answer:
    async with db.transaction() as tx:
        return await claim.report(tx, worker, [End(one, exit_status) for one in held], NOW)
