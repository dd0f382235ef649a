"""A managed job: a DAG of managed tasks that moves as one, and the slots it needs to launch them.

Theory of operation. The job and all its tasks are one aggregate. `step` gives an event to the job or to one
task, then *settles*: in the order of dependencies each task is told what follows (its turn has come, what it
depends on did not succeed, nothing is left to clean up), and the job's schedule state follows its tasks.
Everything one event causes is one commit. A row is one link of that chain, so a record may change more than
once; each link is a `Moved` of its own for the journal.

The schedule state says what the job needs, and is read off the tasks in this order:

    LAUNCHING              a run is on its way (STARTING, or RECOVERING and launched)
    WAITING, ALIVE_WAITING a task is ready; WAITING until the first launch
    ALIVE                  runs are out, nothing is ready
    ALIVE_BACKOFF          no run is out, a task waits for its `resume_at`
    DONE                   all tasks ended, no run is out

*The launch slot* is held by a LAUNCHING job and by no other. It covers whatever the job launches while it holds
it: every task that is ready, and every one that becomes ready before the last launch has settled. So branches
of a DAG never wait for each other, while in a pipeline each task and each recovery queues for its own slot.
*The alive slot* is held by a job that has a run out (`live_runs`), in any state: a job in ALIVE_BACKOFF has
none and holds no slot at all; one in ALIVE_WAITING holds it only for branches that still run. Both are taken
by `Scheduled` alone, so whoever plans and commits in turn (`schedule`, one planner at a time) is never over
the limits: every other event keeps slots or gives them back.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple
from uuid import UUID

from stoker.core import managed_task as mt
from stoker.core.commitment import Outcome
from stoker.core.errors import Broken, UserError
from stoker.core.ids import ManagedJobId, ProjectId, derived
from stoker.core.limits import MOST_TASKS_IN_A_MANAGED_JOB
from stoker.core.machine import Event, Machine, Row, Then, TimeUp, ask, nothing, pairs, rows, stay
from stoker.core.managed_task import MANAGED_TASK, CancelAsked, ManagedTask, ManagedTaskId, Scheduled


class S(StrEnum):
    INACTIVE = "INACTIVE"
    WAITING = "WAITING"
    LAUNCHING = "LAUNCHING"
    ALIVE = "ALIVE"
    ALIVE_BACKOFF = "ALIVE_BACKOFF"
    ALIVE_WAITING = "ALIVE_WAITING"
    DONE = "DONE"


UNFINISHED = tuple(state for state in S if state is not S.DONE)
QUEUED = (S.WAITING, S.ALIVE_WAITING)


@dataclass(frozen=True)
class ManagedJob:
    id: ManagedJobId
    project_id: ProjectId
    name: str
    priority: int = 0
    state: S = S.INACTIVE
    """The seeds' `schedule_state`; what users see is `shown_status`."""
    attempt: int = 0
    version: int = 0
    entered_at: float = 0.0
    created_at: float = 0.0
    resume_at: float | None = None
    """The earliest `resume_at` of its tasks."""
    live_runs: int = 0
    """How many of its tasks have a run out."""
    cancel_asked: bool = False


class Aggregate(NamedTuple):
    job: ManagedJob
    tasks: tuple[ManagedTask, ...]
    """By index, all of them."""


class Stepped(NamedTuple):
    aggregate: Aggregate
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class TaskWanted:
    """What a user asks of one task; `depends_on` names other tasks of the job."""

    name: str
    depends_on: tuple[str, ...] = ()
    has_commands: bool = True
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Submitted(Event):
    """Everything it needs is there: it may be scheduled."""


@dataclass(frozen=True, slots=True)
class TasksMoved(Event):
    """What the tasks add up to. `step` tells it to the job; it never comes from outside."""

    resume_at: float | None = None
    live_runs: int = 0


@dataclass(frozen=True, slots=True)
class LaunchesOut(TasksMoved):
    """A run is on its way."""


@dataclass(frozen=True, slots=True)
class TasksWait(TasksMoved):
    """No run is on its way, and a task is ready."""


@dataclass(frozen=True, slots=True)
class RunsRemain(TasksMoved):
    """Nothing is ready, runs are out."""


@dataclass(frozen=True, slots=True)
class BackoffRemains(TasksMoved):
    """No run is out and nothing is ready: only tasks that back off, and those behind them."""


@dataclass(frozen=True, slots=True)
class AllEnded(TasksMoved):
    """Every task has ended and no run is out."""


def count(job: ManagedJob, event: TasksMoved, now: float) -> Then:
    return ask(resume_at=event.resume_at, live_runs=event.live_runs)


def remember_cancel(job: ManagedJob, event: CancelAsked, now: float) -> Then:
    return ask(cancel_asked=True, note="cancel asked")


def not_asked_yet(job: ManagedJob, event: CancelAsked, now: float) -> bool:
    return not job.cancel_asked


MANAGED_JOB: Machine[ManagedJob] = Machine("managed job", (S.INACTIVE,), (
    #   from             event           to               then     when
    Row(S.INACTIVE,      Submitted,      S.WAITING,       nothing),
    Row(S.WAITING,       Scheduled,      S.LAUNCHING,     nothing),
    Row(S.ALIVE_WAITING, Scheduled,      S.LAUNCHING,     nothing),
    Row(S.LAUNCHING,     RunsRemain,     S.ALIVE,         count),
    Row(S.LAUNCHING,     BackoffRemains, S.ALIVE_BACKOFF, count),
    Row(S.ALIVE,         TasksWait,      S.ALIVE_WAITING, count),
    Row(S.ALIVE,         BackoffRemains, S.ALIVE_BACKOFF, count),
    Row(S.ALIVE_BACKOFF, TasksWait,      S.ALIVE_WAITING, count),
    Row(S.ALIVE_WAITING, RunsRemain,     S.ALIVE,         count),
    Row(S.ALIVE_WAITING, BackoffRemains, S.ALIVE_BACKOFF, count),
    *rows(UNFINISHED,    AllEnded,       S.DONE,          count),
    *stay((S.LAUNCHING,),     LaunchesOut,    count),
    *stay((S.ALIVE_WAITING,), TasksWait,      count),
    *stay((S.ALIVE,),         RunsRemain,     count),
    *stay((S.ALIVE_BACKOFF,), BackoffRemains, count),
    *stay(UNFINISHED,         CancelAsked,    remember_cancel, not_asked_yet),
), stale=(
    pairs(S, CancelAsked)
    | pairs(frozenset(S) - {S.INACTIVE}, Submitted)
    | pairs(frozenset(S) - set(QUEUED), Scheduled)
))  # fmt: skip


def create(
    id: ManagedJobId, project_id: ProjectId, name: str, wanted: Sequence[TaskWanted], now: float, priority: int = 0
) -> Aggregate:
    """A new job and its tasks; a list without dependencies is a pipeline, task after task."""
    edges = _edges(wanted)
    job = ManagedJob(id, project_id, name, priority, entered_at=now, created_at=now)
    tasks = tuple(
        ManagedTask(
            ManagedTaskId(derived(id, index)),
            id,
            index,
            want.name,
            edges[index],
            want.has_commands,
            want.max_restarts_on_errors,
            want.recover_on_exit_codes,
            entered_at=now,
        )
        for index, want in enumerate(wanted)
    )
    return Aggregate(job, tasks)


def _edges(wanted: Sequence[TaskWanted]) -> list[tuple[int, ...]]:
    if not wanted:
        raise UserError("The job has no tasks.", hint="Give it at least one.")
    if len(wanted) > MOST_TASKS_IN_A_MANAGED_JOB:
        raise UserError(
            f"The job has {len(wanted)} tasks.", hint=f"At most {MOST_TASKS_IN_A_MANAGED_JOB:,} are possible."
        )
    index_of = {want.name: index for index, want in enumerate(wanted)}
    if len(index_of) < len(wanted):
        raise UserError("Two tasks have the same name.", hint="Give each task of a job its own name.")
    if not any(want.depends_on for want in wanted):
        return [(index - 1,) if index else () for index in range(len(wanted))]
    for want in wanted:
        for name in want.depends_on:
            if name not in index_of:
                raise UserError(f"Task {want.name} depends on {name}, which is no task of this job.")
            if name == want.name:
                raise UserError(f"Task {want.name} depends on itself.")
    edges = [tuple(sorted({index_of[name] for name in want.depends_on})) for want in wanted]
    try:
        order(edges)
    except CycleError as error:
        cycle = " -> ".join(wanted[index].name for index in error.args[1])
        raise UserError(f"Tasks depend on each other in a circle: {cycle}.") from error
    return edges


def order(edges: Iterable[tuple[int, ...]]) -> list[int]:
    """Dependencies first, and as listed wherever the list allows it."""
    sorter = TopologicalSorter(dict(enumerate(edges)))
    sorter.prepare()
    found, free = [], list(sorter.get_ready())
    heapq.heapify(free)
    while free:
        found.append(heapq.heappop(free))
        sorter.done(found[-1])
        for index in sorter.get_ready():
            heapq.heappush(free, index)
    return found


def step(aggregate: Aggregate, target: UUID, event: Event, now: float) -> Stepped:
    """The only way a managed job changes. `target` is the id of the job or of one of its tasks."""
    walk = _Walk(aggregate, now)
    if target == aggregate.job.id:
        walk.on_job(event)
    else:
        walk.on_task(target, event)
    return Stepped(Aggregate(walk.job, tuple(walk.tasks)), walk.outcome)


class _Walk:
    """One event on its way through the aggregate."""

    def __init__(self, aggregate: Aggregate, now: float) -> None:
        self.job, self.tasks, self.now = aggregate.job, list(aggregate.tasks), now
        self.order = order(task.depends_on for task in aggregate.tasks)
        self.outcome = Outcome()

    def on_job(self, event: Event) -> None:
        if isinstance(event, TasksMoved):
            raise Broken(f"{type(event).__name__} is for a job to tell itself.")
        if not isinstance(event, TimeUp):
            self._tell_job(event)
        if isinstance(event, TimeUp | CancelAsked):
            for index in self.order:
                self._tell(index, event)
        self._settle()

    def on_task(self, target: UUID, event: Event) -> None:
        index = next((task.index for task in self.tasks if task.id == target), None)
        if index is None:
            raise Broken(f"Managed job {self.job.id} has no task {target}.")
        if isinstance(event, mt.Scheduled | mt.NothingToRun | mt.DependencyFailed):
            raise Broken(f"{type(event).__name__} is for the job to tell its task.")
        if isinstance(event, mt.RunNews) and event.attempt is None:
            raise Broken(f"{type(event).__name__} does not say of which run it tells.")
        if isinstance(event, mt.ProgramEnded) and self.tasks[index].state in mt.LAUNCHING:
            # A run may be over before anybody looked: what has ended had started.
            self._tell(index, mt.RunStarted(attempt=event.attempt))
            self._settle()
        self._tell(index, event)
        self._settle()

    def _tell_job(self, event: Event) -> None:
        self.job = self.outcome.follow("managed_job", MANAGED_JOB, self.job, event, self.now).record

    def _tell(self, index: int, event: Event) -> None:
        task = self.tasks[index]
        self.tasks[index] = self.outcome.follow("managed_task", MANAGED_TASK, task, event, self.now).record

    def _settle(self) -> None:
        # What a task is told changes only those behind it, so one pass in order is enough.
        for index in self.order:
            while (event := self._follows(self.tasks[index])) is not None:
                self._tell(index, event)
        moved = _moved(self.job, self.tasks)
        same = (moved.resume_at, moved.live_runs) == (self.job.resume_at, self.job.live_runs)
        if not (same and type(moved) is _SAYS.get(self.job.state)):
            self._tell_job(moved)

    def _follows(self, task: ManagedTask) -> Event | None:
        """What this task has to be told, by its own state, the tasks before it and the job's slot."""
        if task.state is mt.S.CANCELLING and not task.launched:
            return mt.CleanedUp()
        if task.state is mt.S.RUNNING and not task.has_commands:
            return mt.NothingToRun()
        if task.state is mt.S.PENDING:
            for before in (self.tasks[index] for index in task.depends_on):
                if before.state in mt.ENDED and before.state is not mt.S.SUCCEEDED:
                    return mt.DependencyFailed(before.name)
        if self.job.state is S.INACTIVE or not ready(task, self.tasks):
            return None
        if not task.has_commands:
            return mt.NothingToRun()
        return mt.Scheduled() if self.job.state is S.LAUNCHING else None


_SAYS: dict[S, type[TasksMoved]] = {
    S.INACTIVE: TasksWait,
    S.WAITING: TasksWait,
    S.LAUNCHING: LaunchesOut,
    S.ALIVE: RunsRemain,
    S.ALIVE_BACKOFF: BackoffRemains,
    S.ALIVE_WAITING: TasksWait,
    S.DONE: AllEnded,
}
"""What the tasks say when the job is already where it belongs."""


def _moved(job: ManagedJob, tasks: Sequence[ManagedTask]) -> TasksMoved:
    resume_at = min((task.resume_at for task in tasks if task.resume_at is not None), default=None)
    live_runs = sum(task.launched for task in tasks)
    if not live_runs and all(task.state in mt.ENDED for task in tasks):
        return AllEnded(resume_at, live_runs)
    if any(task.launched and task.state in mt.LAUNCHING for task in tasks):
        return LaunchesOut(resume_at, live_runs)
    if any(ready(task, tasks) for task in tasks):
        return TasksWait(resume_at, live_runs)
    return (RunsRemain if live_runs else BackoffRemains)(resume_at, live_runs)


def ready(task: ManagedTask, tasks: Sequence[ManagedTask]) -> bool:
    """It could be launched now."""
    if task.launched or task.resume_at is not None:
        return False
    if task.state is mt.S.PENDING:
        return all(tasks[index].state is mt.S.SUCCEEDED for index in task.depends_on)
    return task.state is mt.S.RECOVERING


def shown_status(aggregate: Aggregate) -> mt.S:
    """The job shows the first task in order that has not succeeded."""
    states = (aggregate.tasks[index].state for index in order(task.depends_on for task in aggregate.tasks))
    return next((state for state in states if state is not mt.S.SUCCEEDED), mt.S.SUCCEEDED)


def deadline(job: ManagedJob) -> float | None:
    return job.resume_at


def holds_alive(job: ManagedJob) -> bool:
    return job.live_runs > 0


def schedule(
    waiting: Sequence[ManagedJob], launching: int, alive: int, max_launching: int, max_alive: int
) -> tuple[ManagedJobId, ...]:
    """Who is `Scheduled` now: highest priority first, lowest id on a tie, a recovery like a first launch.

    A job that lacks an alive slot is passed over by those that hold theirs: it could not use the launch slot.
    """
    chosen: list[ManagedJobId] = []
    for job in sorted((job for job in waiting if job.state in QUEUED), key=lambda job: (-job.priority, job.id)):
        if launching >= max_launching:
            break
        if not holds_alive(job):
            if alive >= max_alive:
                continue
            alive += 1
        launching += 1
        chosen.append(job.id)
    return tuple(chosen)
