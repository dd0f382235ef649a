"""The life of one managed task: a run, launched again as often as it takes.

Theory of operation. Each launch is a run with a number (`attempt`) and the id `ids.derived(task.id,
attempt)`, so launching twice makes one run. `launched` says that this run is out: it may hold machines.
What ends a run (`RunEnded`) is told when the run has finished and its machines are gone, so clearing
`launched` is all there is to release, and the next launch can never overlap.

A RECOVERING task without `launched` waits for a launch slot; with it, its new run is on the way. Backing
off is a PENDING or RECOVERING task with `resume_at`. A recovery is counted once, when the task leaves
RUNNING: launches that fail after that belong to the same recovery, and a restart of the server is no event.

FAILED_CONTROLLER is a state only for a task that had not ended; `outcome_before` keeps what it was. On an
ended task the same news sets `controller_error` beside the outcome, which never changes.

Scheduled, NothingToRun and DependencyFailed come from the job alone (`managed_job.step`): it knows the order.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType
from uuid import UUID

from stoker.core import backoff
from stoker.core.ids import ManagedJobId, RunId, derived
from stoker.core.machine import Effect, Event, Machine, Row, Then, TimeUp, ask, nothing, pairs, rows, stay

ManagedTaskId = NewType("ManagedTaskId", UUID)


class S(StrEnum):
    PENDING = "PENDING"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    RECOVERING = "RECOVERING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    FAILED_SETUP = "FAILED_SETUP"
    FAILED_NO_RESOURCE = "FAILED_NO_RESOURCE"
    FAILED_PRECHECKS = "FAILED_PRECHECKS"
    FAILED_CONTROLLER = "FAILED_CONTROLLER"
    CANCELLED = "CANCELLED"


ENDED = frozenset(S) - {S.PENDING, S.STARTING, S.RUNNING, S.RECOVERING, S.CANCELLING}
UNENDED = tuple(state for state in S if state not in ENDED)
LAUNCHING = (S.STARTING, S.RECOVERING)


class Source(StrEnum):
    """What a recovery recovers from."""

    PREEMPTED = "preempted"
    MACHINE_LOST = "machine lost"
    NO_CAPACITY = "no capacity for all nodes"
    EXIT_CODE = "exit code"
    ERROR = "error"


class Lack(StrEnum):
    """Why a launch can never succeed."""

    RESOURCE = "resource"
    PRECHECKS = "prechecks"


@dataclass(frozen=True)
class ManagedTask:
    id: ManagedTaskId
    """Also the program's STOKER_TASK_ID: the same across recoveries, so that checkpoints are found."""
    managed_job_id: ManagedJobId
    index: int
    name: str
    depends_on: tuple[int, ...] = ()
    has_commands: bool = True
    max_restarts_on_errors: int = 0
    recover_on_exit_codes: frozenset[int] = frozenset()
    state: S = S.PENDING
    attempt: int = 0
    """The number of the run launched last: news of an earlier one falls on the floor."""
    version: int = 0
    entered_at: float = 0.0
    launched: bool = False
    recovering: bool = False
    recovery_count: int = 0
    recovery_source: Source | None = None
    restarts_on_errors: int = 0
    resume_at: float | None = None
    backoff_step: int = 0
    exit_code: int | None = None
    message: str = ""
    controller_error: str = ""
    outcome_before: S | None = None

    @property
    def phase(self) -> str:
        """A wish of this task is current while its phase is the one in which it was wished."""
        return f"{self.state}:{self.attempt}:{'launched' if self.launched else 'free'}"

    @property
    def run_id(self) -> RunId:
        """The run launched last."""
        return RunId(derived(self.id, self.attempt))


@dataclass(frozen=True, slots=True)
class Scheduled(Event):
    """The job has its launch slot, and this task is ready."""


@dataclass(frozen=True, slots=True)
class NothingToRun(Event):
    """Its turn has come and it has no commands. Told twice: it runs, and it has run."""


@dataclass(frozen=True, slots=True)
class DependencyFailed(Event):
    name: str


@dataclass(frozen=True, slots=True)
class CancelAsked(Event):
    """A user wants it to end; also said to the job."""


@dataclass(frozen=True, slots=True)
class ControllerBroke(Event):
    """An internal error that cannot be recovered."""

    message: str


@dataclass(frozen=True, slots=True)
class RunNews(Event):
    """Tells of one run, so it carries `attempt`. `jitter` in [0, 1) spreads a backoff that may follow."""

    message: str = field(default="", kw_only=True)
    jitter: float = field(default=0.5, kw_only=True)


@dataclass(frozen=True, slots=True)
class RunCreated(RunNews):
    """Said in the very commit that creates the run: it must still be wanted, or neither happens."""


@dataclass(frozen=True, slots=True)
class RunStarted(RunNews):
    """The run runs."""


@dataclass(frozen=True, slots=True)
class RunEnded(RunNews):
    """The run's last word: it has finished and its machines are gone."""


@dataclass(frozen=True, slots=True)
class NoCapacity(RunEnded):
    """Nobody had a machine for it, or not enough of them."""


@dataclass(frozen=True, slots=True)
class Preempted(RunEnded):
    """The provider took the machine back."""


@dataclass(frozen=True, slots=True)
class MachineLost(RunEnded):
    """Machine or agent failed under it, whatever the program did."""


@dataclass(frozen=True, slots=True)
class ProgramEnded(RunEnded):
    """The program told its end; `machine_gone` when the provider says that the machine left under it."""

    exit_code: int = 0
    setup_failed: bool = False
    machine_gone: bool = False


@dataclass(frozen=True, slots=True)
class Impossible(RunEnded):
    """No later try can do better: nothing will ever satisfy it, or credentials or specification are bad.

    It is found before anything runs, so a RUNNING task refuses it."""

    lack: Lack = Lack.RESOURCE


@dataclass(frozen=True, slots=True)
class CleanedUp(RunEnded):
    """The run was stopped (by our wish or by somebody), or never came to be and now never will."""


@dataclass(frozen=True, slots=True)
class LaunchRun(Effect):
    """Commit the run `task.run_id`; that it exists already is success."""

    attempt: int


@dataclass(frozen=True, slots=True)
class StopRun(Effect):
    """Stop that run; CleanedUp when it does not exist, since its launch is no longer current."""

    attempt: int


def launch(task: ManagedTask, event: Scheduled, now: float) -> Then:
    attempt = task.attempt + 1
    return ask(LaunchRun(attempt), attempt=attempt, launched=True, resume_at=None)


def run(task: ManagedTask, event: RunStarted, now: float) -> Then:
    return ask(recovering=False, message=event.message)


def back_off(task: ManagedTask, event: RunEnded, now: float) -> Then:
    resume_at = now + backoff.delay_s(task.backoff_step, event.jitter)
    return ask(launched=False, resume_at=resume_at, backoff_step=task.backoff_step + 1, message=event.message)


def recover(task: ManagedTask, event: RunEnded, now: float) -> Then:
    """The machine failed, not the program: queue at once."""
    step = backoff.step_after(task.backoff_step, now - task.entered_at)
    source = Source.PREEMPTED if isinstance(event, Preempted) else Source.MACHINE_LOST
    return _recovery(task, event, source, backoff_step=step)


def recover_partial(task: ManagedTask, event: NoCapacity, now: float) -> Then:
    return _braked(task, event, Source.NO_CAPACITY, now)


def restart_exit_code(task: ManagedTask, event: ProgramEnded, now: float) -> Then:
    return _braked(task, event, Source.EXIT_CODE, now, exit_code=event.exit_code)


def restart_error(task: ManagedTask, event: ProgramEnded, now: float) -> Then:
    used = task.restarts_on_errors + 1
    return _braked(task, event, Source.ERROR, now, exit_code=event.exit_code, restarts_on_errors=used)


def _braked(task: ManagedTask, event: RunEnded, source: Source, now: float, **fields: object) -> Then:
    # A program that fails at once would otherwise buy machines as fast as they come.
    step = backoff.step_after(task.backoff_step, now - task.entered_at)
    resume_at = now + backoff.delay_s(step, event.jitter)
    return _recovery(task, event, source, resume_at=resume_at, backoff_step=step + 1, **fields)


def _recovery(task: ManagedTask, event: RunEnded, source: Source, **fields: object) -> Then:
    fields |= {"recovery_count": task.recovery_count + 1, "recovery_source": source, "recovering": True}
    return Then({"launched": False, "message": event.message, **fields}, note=f"recovers: {source}")


def end(task: ManagedTask, event: RunEnded, now: float) -> Then:
    return ask(launched=False, resume_at=None, message=event.message or task.message)


def end_exited(task: ManagedTask, event: ProgramEnded, now: float) -> Then:
    return ask(launched=False, message=event.message, exit_code=event.exit_code)


def stop(task: ManagedTask, event: CancelAsked, now: float) -> Then:
    wishes = (StopRun(task.attempt),) if task.launched else ()
    return ask(*wishes, resume_at=None, message="cancelled by the user")


def follow_stop(task: ManagedTask, event: CleanedUp, now: float) -> Then:
    return ask(launched=False, message=event.message or "its run was stopped")


def give_up(task: ManagedTask, event: DependencyFailed, now: float) -> Then:
    return ask(message=f"task {event.name} did not succeed")


def break_off(task: ManagedTask, event: ControllerBroke, now: float) -> Then:
    # The run's machines stay ours until CleanedUp: `launched` is kept, and with it the job's slot.
    wishes = (StopRun(task.attempt),) if task.launched else ()
    return ask(*wishes, resume_at=None, controller_error=event.message, outcome_before=task.state)


def note_beside(task: ManagedTask, event: ControllerBroke, now: float) -> Then:
    return ask(controller_error=event.message, note="internal error after the end")


def release(task: ManagedTask, event: RunEnded, now: float) -> Then:
    return ask(launched=False)


def wait_over(task: ManagedTask, event: TimeUp, now: float) -> Then:
    return ask(resume_at=None)


def in_recovery(task: ManagedTask, event: Event, now: float) -> bool:
    return task.recovering


def launched(task: ManagedTask, event: Event, now: float) -> bool:
    return task.launched


def not_launched(task: ManagedTask, event: Event, now: float) -> bool:
    return not task.launched


def empty(task: ManagedTask, event: Event, now: float) -> bool:
    return not task.has_commands


def succeeded(task: ManagedTask, event: ProgramEnded, now: float) -> bool:
    return event.exit_code == 0 and not event.setup_failed


def machine_gone(task: ManagedTask, event: ProgramEnded, now: float) -> bool:
    """The provider's word that the machine is gone beats the job's word that it failed."""
    return event.machine_gone


def exit_code_chosen(task: ManagedTask, event: ProgramEnded, now: float) -> bool:
    return event.exit_code in task.recover_on_exit_codes and not event.setup_failed


def restarts_left(task: ManagedTask, event: ProgramEnded, now: float) -> bool:
    return task.restarts_on_errors < task.max_restarts_on_errors


def in_setup(task: ManagedTask, event: ProgramEnded, now: float) -> bool:
    return event.setup_failed


def no_resource(task: ManagedTask, event: Impossible, now: float) -> bool:
    return event.lack is Lack.RESOURCE


def launched_no_resource(task: ManagedTask, event: Impossible, now: float) -> bool:
    return task.launched and event.lack is Lack.RESOURCE


def due(task: ManagedTask, event: Event, now: float) -> bool:
    return task.resume_at is not None and task.resume_at <= now


def unbroken(task: ManagedTask, event: Event, now: float) -> bool:
    return not task.controller_error


LAST_WORDS = (NoCapacity, Preempted, MachineLost, ProgramEnded, Impossible, CleanedUp)

MANAGED_TASK: Machine[ManagedTask] = Machine("managed task", (S.PENDING,), (
    #   from           event         to                    then               when
    Row(S.PENDING,     Scheduled,    S.RECOVERING,         launch,            in_recovery),
    Row(S.PENDING,     Scheduled,    S.STARTING,           launch),
    Row(S.RECOVERING,  Scheduled,    S.RECOVERING,         launch,            not_launched),
    Row(S.PENDING,     NothingToRun, S.RUNNING,            nothing,           empty),
    Row(S.RUNNING,     NothingToRun, S.SUCCEEDED,          nothing,           empty),
    *stay(LAUNCHING,   RunCreated,                         nothing,           launched),
    *rows(LAUNCHING,   RunStarted,   S.RUNNING,            run,               launched),
    *rows(LAUNCHING,   NoCapacity,   S.PENDING,            back_off,          launched),
    *rows(LAUNCHING,   Preempted,    S.PENDING,            back_off,          launched),
    *rows(LAUNCHING,   MachineLost,  S.PENDING,            back_off,          launched),
    *rows(LAUNCHING,   Impossible,   S.FAILED_NO_RESOURCE, end,               launched_no_resource),
    *rows(LAUNCHING,   Impossible,   S.FAILED_PRECHECKS,   end,               launched),
    Row(S.RUNNING,     Preempted,    S.RECOVERING,         recover),
    Row(S.RUNNING,     MachineLost,  S.RECOVERING,         recover),
    Row(S.RUNNING,     NoCapacity,   S.RECOVERING,         recover_partial),
    Row(S.RUNNING,     ProgramEnded, S.SUCCEEDED,          end_exited,        succeeded),
    Row(S.RUNNING,     ProgramEnded, S.RECOVERING,         recover,           machine_gone),
    Row(S.RUNNING,     ProgramEnded, S.RECOVERING,         restart_exit_code, exit_code_chosen),
    Row(S.RUNNING,     ProgramEnded, S.RECOVERING,         restart_error,     restarts_left),
    Row(S.RUNNING,     ProgramEnded, S.FAILED_SETUP,       end_exited,        in_setup),
    Row(S.RUNNING,     ProgramEnded, S.FAILED,             end_exited),
    *rows((S.PENDING, S.STARTING, S.RUNNING, S.RECOVERING), CancelAsked, S.CANCELLING, stop),
    *rows((S.STARTING, S.RUNNING, S.RECOVERING), CleanedUp, S.CANCELLING, follow_stop, launched),
    Row(S.PENDING,     DependencyFailed, S.CANCELLING,     give_up),
    Row(S.CANCELLING,  CleanedUp,    S.CANCELLED,          end),
    Row(S.CANCELLING,  Preempted,    S.CANCELLED,          end),
    Row(S.CANCELLING,  MachineLost,  S.CANCELLED,          end),
    Row(S.CANCELLING,  NoCapacity,   S.CANCELLED,          end),
    Row(S.CANCELLING,  ProgramEnded, S.SUCCEEDED,          end_exited,        succeeded),
    Row(S.CANCELLING,  ProgramEnded, S.CANCELLED,          end_exited,        machine_gone),
    Row(S.CANCELLING,  ProgramEnded, S.FAILED_SETUP,       end_exited,        in_setup),
    Row(S.CANCELLING,  ProgramEnded, S.FAILED,             end_exited),
    Row(S.CANCELLING,  Impossible,   S.FAILED_NO_RESOURCE, end,               no_resource),
    Row(S.CANCELLING,  Impossible,   S.FAILED_PRECHECKS,   end),
    *rows(UNENDED,     ControllerBroke, S.FAILED_CONTROLLER, break_off),
    *stay(sorted(ENDED - {S.FAILED_CONTROLLER}), ControllerBroke, note_beside, unbroken),
    *(Row(S.FAILED_CONTROLLER, last, S.FAILED_CONTROLLER,  release,           launched) for last in LAST_WORDS),
    *stay((S.PENDING, S.RECOVERING), TimeUp,               wait_over,         due),
), stale=(
    pairs(S, RunCreated)
    | pairs(ENDED, RunStarted, *LAST_WORDS, CancelAsked, ControllerBroke, DependencyFailed, TimeUp)
    | pairs((S.PENDING,), RunStarted, *LAST_WORDS, TimeUp)
    | pairs(LAUNCHING, RunStarted, NoCapacity, Preempted, MachineLost, Impossible, CleanedUp, TimeUp)
    | pairs((S.RECOVERING,), ProgramEnded)
    | pairs((S.RUNNING,), RunStarted, CleanedUp, TimeUp)
    | pairs((S.CANCELLING,), RunStarted, CancelAsked, DependencyFailed, TimeUp)
))  # fmt: skip
