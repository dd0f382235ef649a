"""The pure graph beside the SQL: told of the same acts in the order of their commits, it comes to the same state.

Who asked may never learn whether an act was committed, so the graph is told from inside the commit: the act that a
task of the loop is at (`DOING`) is applied when that task's transaction is on disk, whatever becomes of the answer.
"""

from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

import asyncpg

from stoker.core.errors import Conflict, NotFound, UserError
from stoker.core.fit import Candidate, Kind, plan_claims
from stoker.core.graph import Edge, Graph, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.machine import Event, Row
from stoker.core.task import AVAILABLE, ENDED, INACTIVE, TERMINATED, Ended, GivenBack, Stopped, Task
from stoker.engine.clock import Clock
from stoker.engine.muster import Muster
from stoker.engine.swarm import LEASE_S, Heard, Swarm, Word
from stoker.store.claim import Ask, Work
from stoker.store.database import Connection, Database
from stoker.store.many import Many
from stoker.store.tally import STATES
from stoker.store.task import Cancelled, Draft
from stoker.store.worker import Beat, Expired, Profile
from tests.sim.invariants import Violation

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")
Act = Callable[[float], object]
Given = dict[int, list[Held]]
"""By the identity of the claim."""
DOING: ContextVar[Act | None] = ContextVar("doing", default=None)
EVERYTHING_EVERY = 10
"""Commits after which edges and executions are compared too."""

TASKS = """
SELECT id, state, entered_at, attempt, retry_count, crash_count, worker_id, claim, hold, exit_status,
       pending_dependency_count, (
    SELECT count(*) FROM continuation c JOIN task s ON s.id = c.source
    WHERE c.target = t.id AND s.state NOT IN ('terminated', 'cancelled')
) AS unended
FROM task t
"""
EDGES = "SELECT source, target FROM continuation"
FIGURES = """
SELECT bucket, sum(n)::integer FROM (
    SELECT measure, bucket, n FROM task_tally UNION ALL SELECT measure, bucket, n FROM task_delta
) AS figures WHERE measure = 0 GROUP BY 1 HAVING sum(n) <> 0
"""
EXECUTIONS = "SELECT task_id, attempt, worker_id, claimed_at, time_terminated, outcome, exit_status FROM execution"


class Mirror:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._rows: list[Row] = []
        self._commits = 0
        self._leases: dict[WorkerId, float] = {}
        self._lost: set[WorkerId] = set()
        self._left: set[WorkerId] = set()
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
            if tuple(row)[1:10] != (told := self._told(self.graph.tasks[id])):
                raise Violation(f"task {id} is {tuple(map(str, row))[1:10]}, by the table {tuple(map(str, told))}")
            if row["state"] == INACTIVE.value and row["pending_dependency_count"] != row["unended"]:
                raise Violation(f"task {id} counts {row['pending_dependency_count']} of {row['unended']} open tasks")
        if everything:
            await self._compare_history(connection)

    @staticmethod
    def _told(task: Task) -> tuple[object, ...]:
        counts = (task.attempt, task.retry_count, task.crash_count)
        hold = "poison" if task.held else None
        return (task.state.value, task.entered_at, *counts, task.worker, task.claim, hold, task.exit_status)

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
        figures = {STATES[bucket]: n for bucket, n in await connection.fetch(FIGURES)}
        if figures != (recount := Counter(map(_stand, self.graph.tasks.values()))):
            raise Violation(f"of task states {figures} were counted, and there are {dict(recount)}")

    # What happened, as the graph is told of it.

    def create(self, drafts: Collection[Draft], edges: Collection[Edge], now: float) -> None:
        tasks = [
            Task(
                draft.id,
                draft.state or AVAILABLE,
                now,
                has_command=draft.command is not None,
                priority=draft.priority,
                max_retry_count=draft.max_retry_count,
                crash_limit=draft.crash_limit,
            )
            for draft in drafts
        ]
        self.graph.create(tasks, edges, now)

    def register(self, worker: WorkerId, lease_s: float, now: float) -> None:
        if worker in self._left:
            raise Conflict("it has left")
        self._renewed(worker, lease_s, now)

    def _renewed(self, worker: WorkerId, lease_s: float, now: float) -> None:
        self._leases[worker] = now + lease_s
        self._lost.discard(worker)

    def _holds(self, worker: WorkerId, now: float) -> bool:
        return worker not in self._left | self._lost and self._leases.get(worker, now) > now

    def hear(self, words: Sequence[Word], waiting: Sequence[Ask], given: Given, lease_s: float, now: float) -> None:
        """All that was given back, then all ends, then all claims. A replica may believe that there is nothing."""
        asks = [word.ask for word in words if word.ask is not None] + list(waiting)
        known = {word.worker for word in words if word.worker in self._leases and word.worker not in self._left}
        for worker in known:
            self._renewed(worker, lease_s, now)
        known |= {ask.worker for ask in waiting if self._holds(ask.worker, now)}
        words = [word for word in words if word.worker in known]
        for word in words:
            for held in word.unstarted:
                self.graph.news(word.worker, held, GivenBack(), now)
        for word in words:
            for end in word.ends:
                event: Event = Stopped(end.exit_status) if end.stopped else Ended(end.exit_status)
                self.graph.news(word.worker, end.held, event, now)
        if any(given.values()):
            self._hand_out([ask for ask in asks if ask.worker in known], given, now)

    def _hand_out(self, asks: Sequence[Ask], given: Given, now: float) -> None:
        candidates = [Candidate(id, 0) for id in self.graph.claimable()]
        plan = plan_claims([ask.asker for ask in asks], candidates, {0: Kind(({},))})
        for ask, planned in zip(asks, plan, strict=True):
            held = self.graph.hand_out(ask.worker, [one.task for one in planned], now, ask.number)
            if held != given[id(ask)]:
                raise Violation(f"worker {ask.worker} got {given[id(ask)]}, by the plan {held} of the tasks")

    def heartbeat(self, worker: WorkerId, listed: Collection[Held], number: int, lease_s: float, now: float) -> None:
        if worker in self._left or worker not in self._leases:
            raise NotFound("nobody knows it")
        self._renewed(worker, lease_s, now)
        self.graph.heartbeat(worker, listed, number, now)

    def leave(self, worker: WorkerId, lost: bool, now: float) -> None:
        if worker in self._left or worker not in self._leases:
            return
        self._left.add(worker)
        self._lost.add(worker)
        if lost:
            self.graph.lose(worker, now)
        else:
            self.graph.heartbeat(worker, (), 2**31, now)

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


def _stand(task: Task) -> str:
    if task.state is TERMINATED:
        return "succeeded" if task.exit_status == 0 or not task.has_command else "failed"
    return "held" if task.held else task.state.value


class Mirrored(Swarm):
    """The engine's own door, which tells the mirror what it is at."""

    def __init__(self, mirror: Mirror, database: Database, clock: Clock, lease_s: float, away_after_s: float) -> None:
        super().__init__(database, clock, lease_s, away_after_s)
        self._mirror = mirror
        self._given: Given = {}
        self.muster = Muster(self)
        self.opened = self.muster.heard

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

    async def let_go(self, ids: Collection[TaskId]) -> int:
        return await self._both(lambda now: self._mirror.graph.let_go(ids, now), super().let_go(ids))

    async def cancel(
        self,
        ids: Collection[TaskId] | Many,
        *,
        by: str = "",
        project: ProjectId | None = None,
        event: str = "CancelAsked",
    ) -> Cancelled:
        assert not isinstance(ids, Many)
        return await self._both(
            lambda now: self._mirror.graph.cancel(ids, now), super().cancel(ids, by=by, project=project, event=event)
        )

    async def add_continuations(self, edges: Collection[Edge]) -> None:
        await self._both(lambda now: self._mirror.graph.add_continuations(edges, now), super().add_continuations(edges))

    async def remove_continuations(self, edges: Collection[Edge]) -> int:
        return await self._both(
            lambda now: self._mirror.graph.remove_continuations(edges, now), super().remove_continuations(edges)
        )

    async def register(self, id: WorkerId, project: ProjectId, profile: Profile) -> None:
        await self._both(
            lambda now: self._mirror.register(id, self.lease_s, now), super().register(id, project, profile)
        )

    async def leave(self, id: WorkerId, *, lost: bool = False) -> int:
        return await self._both(lambda now: self._mirror.leave(id, lost, now), super().leave(id, lost=lost))

    async def hear(self, words: Sequence[Word], waiting: Sequence[Ask] = ()) -> tuple[list[Heard], list[list[Work]]]:
        return await self._both(
            lambda now: self._mirror.hear(words, waiting, self._given, self.lease_s, now), super().hear(words, waiting)
        )

    async def _claim(
        self, tx: Connection, asks: Sequence[Ask], known: dict[WorkerId, ProjectId], now: float
    ) -> dict[int, list[Work]]:
        given = await super()._claim(tx, asks, known, now)
        self._given = {ask: [work.held for work in works] for ask, works in given.items()}
        return given

    async def heartbeat(self, id: WorkerId, listed: Collection[Held], number: int) -> Beat:
        return await self._both(
            lambda now: self._mirror.heartbeat(id, listed, number, self.lease_s, now),
            super().heartbeat(id, listed, number),
        )

    async def _expire(self, tx: Connection, now: float) -> Expired:
        answer = await super()._expire(tx, now)
        DOING.set(self._mirror.expire if answer.workers else None)
        return answer

    async def _transact(self, act: Callable[[Connection, float], Any], *args: Any) -> Any:
        try:
            return await super()._transact(act, *args)
        finally:
            # What was rolled back is nobody's business at the next commit of this task.
            DOING.set(None)
