"""All swarm tasks and their edges, one event at a time: slow, obvious, and the measure of the SQL in `store/`."""

from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Final, NamedTuple, TypeVar

from stoker.core.errors import Conflict, NotFound, UserError
from stoker.core.ids import TaskId, WorkerId
from stoker.core.machine import Effect, Event, Refused, Row
from stoker.core.task import (
    AVAILABLE,
    INACTIVE,
    TASK,
    Acquired,
    CancelAsked,
    CancelContinuations,
    Claimed,
    CloseExecution,
    ContinuationChanged,
    DependencyFailed,
    DropExecution,
    GivenBack,
    LetGo,
    MadeAvailable,
    OpenExecution,
    Outcome,
    Passed,
    ReleaseContinuations,
    Released,
    Task,
    TellWorker,
    WorkerLost,
    conflict,
    unknown,
)

STEPS: Final = 500
"""That are done in one go."""

N = TypeVar("N", bound=Hashable)


class Edge(NamedTuple):
    source: TaskId
    target: TaskId


def knots(edges: Iterable[tuple[N, N]]) -> Generator[None, None, list[tuple[N, N]]]:
    """What is left of edges when whoever waits for nobody is taken away, again and again: circles, and what waits for
    them. Yields every so many steps, so that whoever has a million of them can do something else in between."""
    after: dict[N, list[N]] = {}
    waits_for: dict[N, int] = {}
    for steps, (source, target) in enumerate(edges):
        after.setdefault(source, []).append(target)
        waits_for[target] = waits_for.get(target, 0) + 1
        if steps % STEPS == 0:
            yield
    free, steps = [], 0
    for source in after:
        if source not in waits_for:
            free.append(source)
        if (steps := steps + 1) % STEPS == 0:
            yield
    while free:
        for target in after.pop(free.pop(), ()):
            waits_for[target] -= 1
            if not waits_for[target]:
                free.append(target)
            if (steps := steps + 1) % STEPS == 0:
                yield
    return [(source, target) for source, targets in after.items() for target in targets if waits_for[target]]


def refuse_cycle(edges: Iterable[Edge]) -> None:
    """Tasks that wait for each other would wait for ever."""
    order: TopologicalSorter[TaskId] = TopologicalSorter()
    for source, target in edges:
        order.add(target, source)
    try:
        order.prepare()
    except CycleError as error:
        circle = " → ".join(str(id) for id in error.args[1][:5])
        raise UserError(
            f"These continuations make a circle: {circle}{' …' if len(error.args[1]) > 5 else ''}.",
            hint="Take one of these edges away.",
            code="cycle",
        ) from None


@dataclass(frozen=True, slots=True)
class Execution:
    worker: WorkerId
    claimed_at: float
    terminated_at: float | None = None
    outcome: Outcome | None = None
    exit_status: int | None = None


class Held(NamedTuple):
    """One attempt in one worker's hands: what claims give and all news of the worker names."""

    task: TaskId
    attempt: int


@dataclass
class Graph:
    tasks: dict[TaskId, Task] = field(default_factory=dict)
    edges: set[Edge] = field(default_factory=set)
    executions: dict[Held, Execution] = field(default_factory=dict)
    seen: Callable[[Row], None] = field(default=lambda row: None, repr=False, compare=False)
    """Told of each row that a step took: campaigns count which of them they visited."""

    def create(self, tasks: Iterable[Task], edges: Iterable[Edge], now: float) -> None:
        with self._all_or_nothing():
            fresh = {task.id: task for task in tasks}
            for task in fresh.values():
                if task.state not in TASK.initial:
                    raise conflict(task.id, task.state, "a new task is inactive or available")
            if taken := fresh.keys() & self.tasks.keys():
                raise Conflict(f"Task {min(taken)} exists already.")
            self.tasks |= fresh
            self._link(edges, now)
            for task in fresh.values():
                if task.state is AVAILABLE and not task.has_command:
                    self._tell(task.id, Passed(), now)

    def add_continuations(self, edges: Iterable[Edge], now: float) -> None:
        with self._all_or_nothing():
            self._link(edges, now)

    def remove_continuations(self, edges: Iterable[Edge], now: float) -> None:
        with self._all_or_nothing():
            edges = frozenset(edges)
            for edge in edges:
                if edge not in self.edges:
                    raise NotFound(f"{edge.source} has no continuation {edge.target}.")
                if self.tasks[edge.target].state is not INACTIVE:
                    raise conflict(edge.target, self.tasks[edge.target].state, "it waits for nobody")
                self._tell(edge.source, ContinuationChanged(), now)
            # A barrier that one removal lets pass may be the source of another: edges go first, then releases.
            self.edges -= edges
            for edge in edges:
                self._tell(edge.target, Released(), now)

    def make_available(self, ids: Iterable[TaskId], now: float) -> None:
        with self._all_or_nothing():
            for id in ids:
                self._tell(id, MadeAvailable(), now)

    def claim(self, worker: WorkerId, n: int, now: float, claim: int = 0) -> list[Held]:
        return self.hand_out(worker, self.claimable()[:n], now, claim)

    def claimable(self) -> list[TaskId]:
        """In the order in which they are to be begun."""
        waiting = (task for task in self.tasks.values() if task.state is AVAILABLE and not task.held)
        return [id for _, id in sorted((-task.priority, task.id) for task in waiting)]

    def hand_out(self, worker: WorkerId, ids: Iterable[TaskId], now: float, claim: int = 0) -> list[Held]:
        given = list(ids)
        for id in given:
            self._tell(id, Claimed(worker, claim), now)
        return [Held(id, self.tasks[id].attempt) for id in given]

    def news(self, worker: WorkerId, held: Held, event: Event, now: float) -> bool:
        """What a worker says of one attempt; False: it is not the worker's any more, and nothing changed."""
        task = self.tasks.get(held.task)
        if task is None or (task.worker, task.attempt) != (worker, held.attempt):
            return False
        try:
            self._tell(held.task, replace(event, attempt=held.attempt), now)
        except Conflict:
            return False
        return True

    def cancel(self, ids: Iterable[TaskId], now: float) -> set[tuple[WorkerId, Held]]:
        told: set[tuple[WorkerId, Held]] = set()
        for id in ids:
            told |= self._tell(id, CancelAsked(), now)
        return told

    def let_go(self, ids: Iterable[TaskId], now: float) -> None:
        for id in ids:
            self._tell(id, LetGo(), now)

    def heartbeat(self, worker: WorkerId, held: Collection[Held], claim: int, now: float) -> None:
        for task in self._of(worker):
            if Held(task.id, task.attempt) not in held and task.claim <= claim:
                self._tell(task.id, GivenBack(), now)

    def lose(self, worker: WorkerId, now: float) -> None:
        for task in self._of(worker):
            self._tell(task.id, WorkerLost(), now)

    def _of(self, worker: WorkerId) -> list[Task]:
        return [task for task in self.tasks.values() if task.worker == worker]

    def _link(self, edges: Iterable[Edge], now: float) -> None:
        for edge in edges:
            if missing := {edge.source, edge.target} - self.tasks.keys():
                raise unknown(missing)
            self._tell(edge.source, ContinuationChanged(), now)
            if edge not in self.edges or self.tasks[edge.target].state is not INACTIVE:
                self._tell(edge.target, Acquired(), now)
            self.edges.add(edge)
        refuse_cycle(self.edges)

    def _tell(self, id: TaskId, event: Event, now: float) -> set[tuple[WorkerId, Held]]:
        told: set[tuple[WorkerId, Held]] = set()
        waiting = deque([(id, event)])
        while waiting:
            id, event = waiting.popleft()
            try:
                step = TASK.step(self.tasks[id], event, now)
            except Refused as refused:
                raise conflict(id, self.tasks[id].state, str(refused)) from refused
            self.tasks[id] = step.record
            if step.row is not None:
                self.seen(step.row)
            held = Held(id, step.record.attempt)
            waiting += [(TaskId(send.id), send.event) for send in step.sends]
            for effect in step.effects:
                if isinstance(effect, TellWorker):
                    told.add((effect.worker, held))
                elif isinstance(effect, ReleaseContinuations | CancelContinuations):
                    news = Released() if isinstance(effect, ReleaseContinuations) else DependencyFailed()
                    waiting += [(target, news) for source, target in self.edges if source == id]
                else:
                    self._record(held, effect, now)
        return told

    def _record(self, held: Held, effect: Effect, now: float) -> None:
        if isinstance(effect, OpenExecution):
            self.executions[held] = Execution(effect.worker, now)
        elif isinstance(effect, CloseExecution):
            self.executions[held] = replace(
                self.executions[held], terminated_at=now, outcome=effect.outcome, exit_status=effect.exit_status
            )
        elif isinstance(effect, DropExecution):
            del self.executions[held]

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        before = (dict(self.tasks), set(self.edges), dict(self.executions))
        try:
            yield
        except UserError:
            self.tasks, self.edges, self.executions = before
            raise
