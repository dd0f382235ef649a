"""The swarm task: a small durable unit of work, claimed by a worker, with continuations.

Theory of operation. A task does not know its continuations: rows ask for them (`ReleaseContinuations`,
`CancelContinuations`), and `core/graph.py`, like the SQL of `store/`, turns each wish into one event for each
edge in the same commit. `attempt` counts claims and never goes down: it is the fence of a worker's news.
`retry_count`, which people see and `max_retry_count` bounds, goes down when a task is given back, so a repeated
message could meet its old value again: it cannot be the fence. `claim` is the worker's own number of the request that
took the task; a heartbeat written before the answer to that request arrived must not give the task back.

A task that takes one worker after the other down is held once it did so `crash_limit` times: it stays available, but
nobody can claim it until somebody lets it go. `crash_count` goes on from there, so that the next loss holds it again.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from stoker.core.errors import Conflict, NotFound
from stoker.core.ids import TaskId, WorkerId
from stoker.core.machine import Effect, Event, Machine, Row, Send, Then, ask, nothing, pairs, rows, stay


class State(Enum):
    INACTIVE = "inactive"
    AVAILABLE = "available"
    RUNNING = "running"
    PENDING_CANCELLATION = "pending_cancellation"
    TERMINATED = "terminated"
    CANCELLED = "cancelled"


INACTIVE, AVAILABLE, RUNNING, PENDING_CANCELLATION, TERMINATED, CANCELLED = State
HELD = (RUNNING, PENDING_CANCELLATION)
ENDED = (TERMINATED, CANCELLED)
OPEN_TO_EDGES = (INACTIVE, AVAILABLE, RUNNING)


class Outcome(Enum):
    """How one attempt ended: as its worker says, stopped on request, or without a word."""

    ENDED = "ended"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True)
class Task:
    id: TaskId
    state: State
    entered_at: float
    has_command: bool = True
    priority: int = 0
    max_retry_count: int = 1
    pending_dependency_count: int = 0
    attempt: int = 0
    retry_count: int = 0
    crash_count: int = 0
    crash_limit: int = 5
    held: bool = False
    """As poison."""
    exit_status: int | None = None
    """Of the attempt that ended last; none: it was lost, or its status could not be learnt."""
    worker: WorkerId | None = None
    claim: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class Acquired(Event):
    """Another task was told to continue with this one."""


@dataclass(frozen=True, slots=True)
class Released(Event):
    """A dependency succeeded, or does not name this task any more."""


@dataclass(frozen=True, slots=True)
class ContinuationChanged(Event):
    """Somebody adds a continuation to this task, or removes one."""


@dataclass(frozen=True, slots=True)
class MadeAvailable(Event):
    """A user wants it to be claimed."""


@dataclass(frozen=True, slots=True)
class Passed(Event):
    """Available with nothing to run: a barrier tells itself."""


@dataclass(frozen=True, slots=True)
class Claimed(Event):
    worker: WorkerId
    claim: int = 0


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """Its worker saw the process end by itself. No status: it could not be learnt, which is a failure."""

    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class Stopped(Event):
    """Its worker stopped the process because it was asked to."""

    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class GivenBack(Event):
    """Its worker never started it."""


@dataclass(frozen=True, slots=True)
class WorkerLost(Event):
    """The lease of its worker is over."""


@dataclass(frozen=True, slots=True)
class CancelAsked(Event):
    pass


@dataclass(frozen=True, slots=True)
class LetGo(Event):
    """A user wants it to be claimed although it took many workers down."""


@dataclass(frozen=True, slots=True)
class DependencyFailed(Event):
    """A task that names this one as continuation was cancelled, or failed for good."""


@dataclass(frozen=True, slots=True)
class ReleaseContinuations(Effect):
    pass


@dataclass(frozen=True, slots=True)
class CancelContinuations(Effect):
    pass


@dataclass(frozen=True, slots=True)
class TellWorker(Effect):
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class OpenExecution(Effect):
    worker: WorkerId


@dataclass(frozen=True, slots=True)
class CloseExecution(Effect):
    outcome: Outcome
    exit_status: int | None = None


@dataclass(frozen=True, slots=True)
class DropExecution(Effect):
    """The attempt never began: history does not know it."""


def one_more(task: Task, event: Acquired, now: float) -> Then:
    return ask(pending_dependency_count=task.pending_dependency_count + 1)


def one_less(task: Task, event: Released, now: float) -> Then:
    return ask(pending_dependency_count=task.pending_dependency_count - 1)


def open_up(task: Task, event: Event, now: float) -> Then:
    itself = () if task.has_command else (Send("task", task.id, Passed()),)
    return ask(sends=itself, pending_dependency_count=0)


def release(task: Task, event: Passed, now: float) -> Then:
    return ask(ReleaseContinuations())


def start(task: Task, event: Claimed, now: float) -> Then:
    return ask(
        OpenExecution(event.worker),
        attempt=task.attempt + 1,
        retry_count=task.retry_count + 1,
        worker=event.worker,
        claim=event.claim,
    )


def succeed(task: Task, event: Ended, now: float) -> Then:
    return ask(_close(event), ReleaseContinuations(), worker=None, exit_status=event.exit_status)


def fail(task: Task, event: Ended, now: float) -> Then:
    return ask(_close(event), CancelContinuations(), worker=None, exit_status=event.exit_status)


def try_again(task: Task, event: Ended, now: float) -> Then:
    return ask(_close(event), worker=None, exit_status=event.exit_status)


def _close(event: Ended) -> CloseExecution:
    return CloseExecution(Outcome.ENDED, event.exit_status)


def stop(task: Task, event: Stopped, now: float) -> Then:
    closed = CloseExecution(Outcome.CANCELLED, event.exit_status)
    return ask(closed, CancelContinuations(), worker=None, exit_status=event.exit_status)


def drop(task: Task, event: GivenBack, now: float) -> Then:
    return ask(DropExecution(), worker=None, retry_count=task.retry_count - 1)


def drop_for_good(task: Task, event: GivenBack, now: float) -> Then:
    return ask(DropExecution(), CancelContinuations(), worker=None, retry_count=task.retry_count - 1)


def move_on(task: Task, event: WorkerLost, now: float) -> Then:
    return ask(CloseExecution(Outcome.LOST), worker=None, crash_count=task.crash_count + 1, exit_status=None)


def put_aside(task: Task, event: WorkerLost, now: float) -> Then:
    crash_count = task.crash_count + 1
    return ask(CloseExecution(Outcome.LOST), worker=None, crash_count=crash_count, exit_status=None, held=True)


def lose(task: Task, event: WorkerLost, now: float) -> Then:
    closed = CloseExecution(Outcome.LOST)
    return ask(closed, CancelContinuations(), worker=None, crash_count=task.crash_count + 1, exit_status=None)


def let_go(task: Task, event: LetGo, now: float) -> Then:
    return ask(held=False)


def cancel(task: Task, event: Event, now: float) -> Then:
    return ask(CancelContinuations(), held=False)


def tell_worker(task: Task, event: CancelAsked, now: float) -> Then:
    return ask(TellWorker(task.worker)) if task.worker else ask()


def several_open(task: Task, event: Event, now: float) -> bool:
    return task.pending_dependency_count > 1


def last_open(task: Task, event: Event, now: float) -> bool:
    return task.pending_dependency_count == 1


def none_open(task: Task, event: Event, now: float) -> bool:
    return task.pending_dependency_count == 0


def barrier(task: Task, event: Event, now: float) -> bool:
    return not task.has_command


def claimable(task: Task, event: Event, now: float) -> bool:
    return task.has_command and not task.held


def held(task: Task, event: Event, now: float) -> bool:
    return task.held


def exit_status_0(task: Task, event: Ended, now: float) -> bool:
    return event.exit_status == 0


def attempt_left(task: Task, event: Event, now: float) -> bool:
    return task.retry_count < task.max_retry_count


def poison(task: Task, event: Event, now: float) -> bool:
    return attempt_left(task, event, now) and task.crash_count + 1 >= task.crash_limit


TASK: Machine[Task] = Machine(
    "task",
    initial=(INACTIVE, AVAILABLE),
    rows=(
        Row(INACTIVE, Acquired, INACTIVE, one_more),
        Row(INACTIVE, Released, INACTIVE, one_less, several_open),
        Row(INACTIVE, Released, AVAILABLE, open_up, last_open),
        Row(INACTIVE, MadeAvailable, AVAILABLE, open_up, none_open),
        *stay(OPEN_TO_EDGES, ContinuationChanged, nothing),
        Row(AVAILABLE, Passed, TERMINATED, release, barrier),
        Row(AVAILABLE, Claimed, RUNNING, start, claimable),
        Row(AVAILABLE, LetGo, AVAILABLE, let_go, held),
        Row(RUNNING, Ended, TERMINATED, succeed, exit_status_0),
        Row(RUNNING, Ended, AVAILABLE, try_again, attempt_left),
        Row(RUNNING, Ended, TERMINATED, fail),
        Row(RUNNING, WorkerLost, AVAILABLE, put_aside, poison),
        Row(RUNNING, WorkerLost, AVAILABLE, move_on, attempt_left),
        Row(RUNNING, WorkerLost, TERMINATED, lose),
        Row(RUNNING, GivenBack, AVAILABLE, drop),
        *rows((INACTIVE, AVAILABLE), CancelAsked, CANCELLED, cancel),
        Row(INACTIVE, DependencyFailed, CANCELLED, cancel),
        Row(RUNNING, CancelAsked, PENDING_CANCELLATION, tell_worker),
        Row(PENDING_CANCELLATION, Ended, TERMINATED, succeed, exit_status_0),
        Row(PENDING_CANCELLATION, Ended, TERMINATED, fail),
        Row(PENDING_CANCELLATION, Stopped, CANCELLED, stop),
        Row(PENDING_CANCELLATION, GivenBack, CANCELLED, drop_for_good),
        Row(PENDING_CANCELLATION, WorkerLost, CANCELLED, lose),
    ),
    stale=pairs((PENDING_CANCELLATION, *ENDED), CancelAsked)
    | pairs(State, LetGo)
    # A cancelled task may have other dependencies that end later, well or badly.
    | pairs((CANCELLED,), Released, DependencyFailed)
    | pairs((AVAILABLE, *ENDED), Ended, Stopped, GivenBack, WorkerLost),
)


def conflict(id: TaskId, state: State, wish: str) -> Conflict:
    """The answer to a change that the current state does not allow."""
    return Conflict(
        f"Task {id} is {state.value}: {wish}.", hint="Nothing was changed; look at the task and decide anew."
    )


def unknown(ids: Collection[TaskId]) -> NotFound:
    return NotFound(f"There is no task {min(ids)}{f' (nor {len(ids) - 1} others)' if len(ids) > 1 else ''}.")
