"""The pure graph beside the SQL: told of the same acts in the order of their commits, it comes to the same state.

Who asked may never learn whether an act was committed, so the graph is told from inside the commit: the act that a
task of the loop is at (`DOING`) is applied when that task's transaction is on disk, whatever becomes of the answer.
"""

from collections.abc import Callable, Collection, Coroutine
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from stoker.core.errors import UserError
from stoker.core.graph import Edge, Graph, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.machine import Event, Row
from stoker.core.task import ENDED, INACTIVE, Ended, GivenBack, Stopped, Task
from stoker.engine.clock import Clock
from stoker.engine.swarm import LEASE_S, Swarm
from stoker.store.claim import Answer, Beat, End, Expired, Work
from stoker.store.database import Connection, Database
from stoker.store.task import Cancelled, Draft
from tests.sim.invariants import Violation

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")
Act = Callable[[float], object]
DOING: ContextVar[Act | None] = ContextVar("doing", default=None)
EVERYTHING_EVERY = 10
"""Commits after which edges and executions are compared too."""

TASKS = """
SELECT id, state, entered_at, attempt, retry_count, crash_count, worker_id, claim, pending_dependency_count, (
    SELECT count(*) FROM continuation c JOIN task s ON s.id = c.source
    WHERE c.target = t.id AND s.state NOT IN ('terminated', 'cancelled')
) AS unended
FROM task t
"""
EDGES = "SELECT source, target FROM continuation"
EXECUTIONS = "SELECT task_id, attempt, worker_id, claimed_at, time_terminated, outcome, exit_status FROM execution"


class Mirror:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._rows: list[Row] = []
        self._commits = 0
        self._leases: dict[WorkerId, float] = {}
        self._lost: set[WorkerId] = set()
        self.back_at = 0.0
        """When the last replica began to come while there was no other."""
        self.graph = Graph(seen=self._rows.append)

    async def after_commit(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        act = DOING.get()
        if act is None:
            return
        DOING.set(None)
        self._rows.clear()
        try:
            act(self._world.now())
        except UserError as error:
            raise Violation(f"the SQL did what the table refuses: {error}") from error
        for row in self._rows:
            self._world.visited("task", row)
        self._commits += 1
        await self.compare(connection, everything=self._commits % EVERYTHING_EVERY == 0)

    def refused(self, act: Act) -> None:
        """The SQL refused, and so must the table."""
        try:
            act(self._world.now())
        except UserError:
            return
        self._world.violated("the SQL refused what the table allows")

    async def compare(self, connection: "asyncpg.Connection[asyncpg.Record]", *, everything: bool) -> None:
        stored = {row["id"]: row for row in await connection.fetch(TASKS)}
        for id in sorted(stored.keys() ^ self.graph.tasks.keys()):
            raise Violation(f"task {id} is in {'the database' if id in stored else 'the graph'} only")
        for id, row in stored.items():
            if tuple(row)[1:8] != (told := self._told(self.graph.tasks[id])):
                raise Violation(f"task {id} is {tuple(map(str, row))[1:8]}, by the table {tuple(map(str, told))}")
            if row["state"] == INACTIVE.value and row["pending_dependency_count"] != row["unended"]:
                raise Violation(f"task {id} counts {row['pending_dependency_count']} of {row['unended']} open tasks")
        if everything:
            await self._compare_history(connection)

    @staticmethod
    def _told(task: Task) -> tuple[object, ...]:
        counts = (task.attempt, task.retry_count, task.crash_count)
        return (task.state.value, task.entered_at, *counts, task.worker, task.claim)

    async def _compare_history(self, connection: "asyncpg.Connection[asyncpg.Record]") -> None:
        """Who waited for whom, and what became of each attempt: also of those that were lost."""
        if different := {Edge(*row) for row in await connection.fetch(EDGES)} ^ self.graph.edges:
            raise Violation(f"continuations differ: {min(different)}")
        stored = {
            Held(row["task_id"], row["attempt"]): (
                row["worker_id"], row["claimed_at"], row["time_terminated"] is None, row["outcome"], row["exit_status"],
            )
            for row in await connection.fetch(EXECUTIONS)
        }  # fmt: skip
        told = {
            held: (
                one.worker, one.claimed_at, one.terminated_at is None, one.outcome.value if one.outcome else None,
                one.exit_status,
            )
            for held, one in self.graph.executions.items()
        }  # fmt: skip
        for held in sorted(stored.keys() | told.keys()):
            if stored.get(held) != told.get(held):
                raise Violation(f"execution {held}: {stored.get(held)}, by the table {told.get(held)}")

    # What happened, as the graph is told of it.

    def create(self, drafts: Collection[Draft], edges: Collection[Edge], now: float) -> None:
        tasks = [
            Task(
                draft.id,
                draft.state,
                now,
                has_command=draft.command is not None,
                priority=draft.priority,
                max_retry_count=draft.max_retry_count,
            )
            for draft in drafts
        ]
        self.graph.create(tasks, edges, now)

    def renewed(self, worker: WorkerId, lease_s: float, now: float) -> None:
        self._leases[worker] = now + lease_s
        self._lost.discard(worker)

    def claim(self, worker: WorkerId, n: int, number: int, lease_s: float, now: float) -> None:
        self.renewed(worker, lease_s, now)
        self.graph.claim(worker, n, now, number)

    def report(self, worker: WorkerId, ends: Collection[End], now: float) -> None:
        for held, exit_status, stopped, *_ in ends:
            event: Event = Stopped(exit_status) if stopped else Ended(exit_status)
            self.graph.news(worker, held, event, now)

    def give_back(self, worker: WorkerId, unstarted: Collection[Held], now: float) -> None:
        for held in unstarted:
            self.graph.news(worker, held, GivenBack(), now)

    def heartbeat(self, worker: WorkerId, listed: Collection[Held], number: int, lease_s: float, now: float) -> None:
        self.renewed(worker, lease_s, now)
        self.graph.heartbeat(worker, listed, number, now)

    def expire(self, now: float) -> None:
        for worker, until in self._leases.items():
            if until <= now and worker not in self._lost:
                if now < self.back_at + LEASE_S:
                    self._world.violated(
                        f"worker {worker} was lost {now - self.back_at:.0f} s after the servers came back"
                    )
                self._lost.add(worker)
                self.graph.lose(worker, now)

    def unended(self) -> list[Task]:
        return [task for task in self.graph.tasks.values() if task.state not in ENDED]


class Mirrored(Swarm):
    """The engine's own door, which tells the mirror what it is at."""

    def __init__(self, mirror: Mirror, database: Database, clock: Clock, lease_s: float, away_after_s: float) -> None:
        super().__init__(database, clock, lease_s, away_after_s)
        self._mirror = mirror

    async def _both(self, act: Act, work: Coroutine[Any, Any, T]) -> T:
        token = DOING.set(act)
        try:
            return await work
        except UserError:
            self._mirror.refused(act)
            raise
        finally:
            DOING.reset(token)

    async def create(self, drafts: Collection[Draft], edges: Collection[Edge] = (), *, by: str = "") -> int:
        return await self._both(
            lambda now: self._mirror.create(drafts, edges, now), super().create(drafts, edges, by=by)
        )

    async def make_available(self, ids: Collection[TaskId]) -> int:
        return await self._both(lambda now: self._mirror.graph.make_available(ids, now), super().make_available(ids))

    async def cancel(self, ids: Collection[TaskId], *, by: str = "") -> Cancelled:
        return await self._both(lambda now: self._mirror.graph.cancel(ids, now), super().cancel(ids, by=by))

    async def add_continuations(self, edges: Collection[Edge]) -> None:
        await self._both(lambda now: self._mirror.graph.add_continuations(edges, now), super().add_continuations(edges))

    async def remove_continuations(self, edges: Collection[Edge]) -> int:
        return await self._both(
            lambda now: self._mirror.graph.remove_continuations(edges, now), super().remove_continuations(edges)
        )

    async def register(self, worker: WorkerId, project: ProjectId, name: str) -> None:
        await self._both(
            lambda now: self._mirror.renewed(worker, self.lease_s, now), super().register(worker, project, name)
        )

    async def claim(self, worker: WorkerId, n: int, number: int) -> list[Work]:
        return await self._both(
            lambda now: self._mirror.claim(worker, n, number, self.lease_s, now), super().claim(worker, n, number)
        )

    async def report(self, worker: WorkerId, ends: Collection[End]) -> Answer:
        return await self._both(lambda now: self._mirror.report(worker, ends, now), super().report(worker, ends))

    async def give_back(self, worker: WorkerId, unstarted: Collection[Held]) -> Answer:
        return await self._both(
            lambda now: self._mirror.give_back(worker, unstarted, now), super().give_back(worker, unstarted)
        )

    async def heartbeat(self, worker: WorkerId, listed: Collection[Held], number: int) -> Beat:
        return await self._both(
            lambda now: self._mirror.heartbeat(worker, listed, number, self.lease_s, now),
            super().heartbeat(worker, listed, number),
        )

    async def _expire(self, tx: Connection, now: float) -> Expired:
        answer = await super()._expire(tx, now)
        DOING.set(self._mirror.expire if answer.workers else None)
        return answer

    async def _transact(self, act: Callable[[Connection, float], Any]) -> Any:
        try:
            return await super()._transact(act)
        finally:
            # What was rolled back is nobody's business at the next commit of this task.
            DOING.set(None)
