"""What the tests of swarm tasks share: small swarms, and twins that do each thing to the SQL and to the pure graph."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from stoker.core.errors import UserError
from stoker.core.fit import Asker, Candidate, Kind, plan_claims
from stoker.core.graph import Edge, Graph, Held
from stoker.core.ids import ProjectId, TaskId, WorkerId
from stoker.core.machine import Event
from stoker.core.task import (
    AVAILABLE,
    ENDED,
    HELD,
    INACTIVE,
    PENDING_CANCELLATION,
    TERMINATED,
    Ended,
    GivenBack,
    Outcome,
    State,
    Stopped,
    Task,
)
from stoker.store import claim, continuation, report, tally, task, task_kind, worker
from stoker.store.claim import Ask
from stoker.store.continuation import Opened
from stoker.store.database import Connection, Database
from stoker.store.report import Answer, End
from stoker.store.tally import STATES, Figures
from stoker.store.worker import Profile

PROJECT = ProjectId(UUID(int=0xC0FFEE))
LEASE_S = 10.0
Databases = Callable[[], AbstractAsyncContextManager[Database]]
NOW = 1000.0
WORKERS = [WorkerId(UUID(int=0xA00 + n)) for n in range(3)]
ANN, BOB, _ = WORKERS
PROFILE = Profile("w")
KINDS = {
    "small": Kind(({"cpus": 1},)),
    "large": Kind(({"cpus": 2, "memory": 100},)),
    "half a gpu": Kind(({"gpus": 0.5},)),
    "either": Kind(({"gpus": 1}, {"cpus": 3})),
    "licensed": Kind(({"cpus": 1},), key="licence"),
}
KEYS = {"licence": 2}
"""Of the tasks with such a key, so many run at once."""


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
    kinds: dict[TaskId, str] = field(default_factory=dict)
    """What each needs, by its name in `KINDS`; the graph does not know it."""

    async def register(self, id: WorkerId) -> None:
        await worker.register(self.conn, id, PROJECT, PROFILE, LEASE_S, self.now)
        self.leases[id], self.claims[id] = self.now + LEASE_S, 0

    async def create(self, tasks: Sequence[Task], edges: Sequence[Edge], kinds: Mapping[TaskId, str]) -> None:
        drafts = [
            task.Draft(
                one.id,
                PROJECT,
                one.state,
                command='["true"]' if one.has_command else None,
                requested_resources=json.dumps(KINDS[kinds[one.id]].options[0]),
                alternatives=tuple(json.dumps(other) for other in KINDS[kinds[one.id]].options[1:]),
                key=KINDS[kinds[one.id]].key,
                priority=one.priority,
                max_retry_count=one.max_retry_count,
                crash_limit=one.crash_limit,
            )
            for one in tasks
        ]
        self.kinds |= kinds
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

    async def let_go(self, ids: Sequence[TaskId]) -> None:
        available = self._available()
        self.graph.let_go(ids, self.now)
        await self._opened(await task.let_go(self.conn, ids), available)

    async def claim(self, askers: Mapping[WorkerId, Asker]) -> None:
        """All of them in one round; what each gets is the plan of `core/fit.py` for what the graph has."""
        asks = [self._ask(id, asker) for id, asker in askers.items()]
        assert (await worker.renew(self.conn, list(askers), LEASE_S, self.now)).keys() == askers.keys()
        ids = [row["id"] for row in await self.conn.fetch("SELECT id FROM task_kind")]
        kinds = await task_kind.read(self.conn, ids)
        plan = self._plan(list(askers.values()))
        found = await claim.claim(self.conn, PROJECT, asks, kinds, self.now)
        waiting = {self.kinds[id] for id in self.graph.claimable()}
        wanted = {id for id in kinds if any(asker.could(kinds[id].kind) for asker in askers.values())}
        assert found.empty == {id for id in wanted if _name(kinds[id].kind) not in waiting}
        for ask, works, given in zip(asks, found.works, plan, strict=True):
            held = [one.held for one in works]
            assert held == self.graph.hand_out(ask.worker, given, self.now, ask.number)
            self.claimed |= set(held)

    def _ask(self, id: WorkerId, asker: Asker) -> Ask:
        self.claims[id] += 1
        self._renewed(id)
        return Ask(id, self.claims[id], asker)

    def _plan(self, askers: Sequence[Asker]) -> list[list[TaskId]]:
        kinds = dict(enumerate(KINDS.values()))
        numbers = {name: number for number, name in enumerate(KINDS)}
        candidates = [
            Candidate(id, numbers[self.kinds[id]], self.now - self.graph.tasks[id].entered_at)
            for id in self.graph.claimable()
        ]
        running = Counter(KINDS[self.kinds[one.id]].key for one in self.graph.tasks.values() if one.worker is not None)
        left = {key: most - running[key] for key, most in KEYS.items()}
        # As many of a kind as they take at most are looked at.
        most, seen = sum(asker.most for asker in askers), Counter[int]()
        looked_at = []
        for one in candidates:
            seen[one.kind] += 1
            if seen[one.kind] <= most:
                looked_at.append(one)
        return [[one.task for one in given] for given in plan_claims(askers, looked_at, kinds, left)]

    async def report(self, said: Sequence[tuple[WorkerId, End]]) -> None:
        available = self._available()
        refused: set[tuple[WorkerId, Held]] = set()
        first: dict[tuple[WorkerId, Held], End] = {}
        for id, end in said:
            first.setdefault((id, end.held), end)
        for (id, held), end in first.items():
            event: Event = Stopped(end.exit_status) if end.stopped else Ended(end.exit_status)
            if not self.graph.news(id, held, event, self.now):
                refused.add((id, held))
        await self._answered(await report.report(self.conn, said, self.now), refused, available)

    async def give_back(self, unstarted: Collection[tuple[WorkerId, Held]]) -> None:
        available = self._available()
        refused = {(id, held) for id, held in unstarted if not self.graph.news(id, held, GivenBack(), self.now)}
        await self._answered(await report.give_back(self.conn, unstarted, self.now), refused, available)

    async def _answered(self, answer: Answer, refused: set[tuple[WorkerId, Held]], before: set[TaskId]) -> None:
        assert answer.refused == {(id, held): self.graph.tasks[held.task].state for id, held in refused}
        await self._opened(answer.opened, before)

    async def heartbeat(self, id: WorkerId, listed: Collection[Held], number: int) -> None:
        available = self._available()
        own = {Held(one.id, one.attempt): one for one in self.graph.tasks.values() if one.worker == id}
        beat = await worker.heartbeat(self.conn, id, listed, LEASE_S, self.now, number)
        assert beat.gone == sorted(set(listed) - own.keys())
        pending = {held for held, one in own.items() if one.state is PENDING_CANCELLATION}
        assert sorted(beat.unwanted) == sorted(pending & set(listed))
        self.graph.heartbeat(id, listed, number, self.now)
        self._renewed(id)
        await self._opened(beat.opened, available)

    async def expire(self) -> None:
        available = self._available()
        over = {id for id, until in self.leases.items() if until <= self.now} - self.lost
        for id in over:
            self.graph.lose(id, self.now)
        self.lost |= over
        answer = await worker.expire(self.conn, self.now)
        assert answer.workers == len(over)
        await self._opened(answer.opened, available)

    async def fold(self) -> None:
        """What is summed up is what was counted."""
        before = await self.figures()
        await tally.fold(self.conn, self.now)
        assert await self.conn.fetchval("SELECT count(*) FROM task_delta") == 0
        assert await self.figures() == before

    def _renewed(self, id: WorkerId) -> None:
        self.leases[id] = self.now + LEASE_S
        self.lost.discard(id)

    async def both(self, sql: Callable[[], Awaitable[Opened | None]], pure: Callable[[], None]) -> None:
        """A wish that may be refused: then by both, and nothing is changed."""
        available = self._available()
        refused: UserError | None = None
        try:
            pure()
        except UserError as error:
            refused = error
        try:
            # A savepoint: what a refused graph needs is written before its edges are looked at.
            async with self.conn.transaction():
                answer = await sql()
        except UserError:
            assert refused is not None, "the SQL refuses, the table does not"
            return
        assert refused is None, f"the table refuses, the SQL does not: {refused}"
        if answer is not None:
            await self._opened(answer, available)

    async def _opened(self, opened: Opened, before: set[TaskId]) -> None:
        """What can be claimed now and could not before, and of which kinds it is."""
        fresh = self._available() - before
        assert opened.count == len(fresh)
        found = await task_kind.read(self.conn, opened.kinds)
        assert {_name(stored.kind) for stored in found.values()} == {self.kinds[id] for id in fresh}

    def _available(self) -> set[TaskId]:
        return set(self.graph.claimable())

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
        await self._check_figures()

    async def figures(self) -> Figures:
        return await tally.figures(self.conn, PROJECT, task_kind.PROJECT, "")

    async def _check_figures(self) -> None:
        """What was counted along the way is what a recount finds."""
        found = {
            measure: {bucket: figure.n for bucket, figure in figures.items()}
            for measure, figures in (await self.figures()).items()
        }
        tasks, executions = self.graph.tasks.values(), self.graph.executions.values()
        retries = sum(max(0, one.retry_count - 1) for one in tasks)
        recounted = {
            tally.STATE: Counter(STATES.index(_stand(one)) for one in tasks),
            tally.ENDED: Counter(int(one.entered_at // tally.SLICE_S) for one in tasks if one.state in ENDED),
            tally.EXIT: Counter(one.exit_status for one in executions if one.exit_status is not None),
            tally.LOST: Counter(0 for one in executions if one.outcome is Outcome.LOST),
            tally.RETRY: Counter({0: retries} if retries else {}),
        }
        assert {measure: found.get(measure, {}) for measure in recounted} == recounted
        assert sum(found.get(tally.WAIT, {}).values()) == len(self.claimed)

    async def _tasks(self) -> dict[TaskId, dict[str, Any]]:
        found = {}
        for row in await self.conn.fetch("SELECT * FROM task"):
            kept = dict(row)
            for name in ("project_id", "created_at", "kind_id", "scopes", "keyed", "start_at", "deadline_at"):
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
            "crash_limit": one.crash_limit,
            "hold": "poison" if one.held else None,
            "exit_status": one.exit_status,
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


def _name(kind: Kind) -> str:
    return next(name for name, known in KINDS.items() if known == kind)


def _stand(one: Task) -> str:
    """As people count them."""
    if one.state is TERMINATED:
        return "succeeded" if one.exit_status == 0 or not one.has_command else "failed"
    return "held" if one.held else one.state.value


@asynccontextmanager
async def swarm(database: Databases, drafts: list[task.Draft], *edges: tuple[int, int]) -> AsyncIterator[Database]:
    """A database with these tasks, these edges between their numbers, and the workers."""
    async with database() as db:
        async with db.transaction() as tx:
            for id in WORKERS:
                await worker.register(tx, id, PROJECT, PROFILE, LEASE_S, NOW)
            await task.create(tx, drafts, [Edge(task_id(a), task_id(b)) for a, b in edges], NOW)
        yield db


def draft(n: int, state: State = AVAILABLE, **fields: Any) -> task.Draft:
    return task.Draft(task_id(n), PROJECT, state, command='"true"', **fields)


async def states(db: Database) -> dict[int, str]:
    async with db.connection() as conn:
        return {row["id"].int: row["state"] for row in await conn.fetch("SELECT id, state FROM task ORDER BY id")}


async def claimed(tx: Connection, *asks: Ask) -> list[list[Held]]:
    """Of all kinds of which there is something."""
    kinds = await task_kind.read(tx, await task_kind.waiting_kinds(tx, PROJECT))
    found = await claim.claim(tx, PROJECT, asks, kinds, NOW)
    return [[work.held for work in works] for works in found.works]


async def claim_all(db: Database, id: WorkerId = ANN, n: int = 1000, number: int = 0) -> list[Held]:
    async with db.transaction() as tx:
        await worker.renew(tx, [id], LEASE_S, NOW)
        (held,) = await claimed(tx, Ask.anything(id, number, n))
        return held


async def end(db: Database, id: WorkerId, held: Iterable[Held], exit_status: int = 0) -> Answer:
    async with db.transaction() as tx:
        return await report.report(tx, [(id, End(one, exit_status)) for one in held], NOW)
