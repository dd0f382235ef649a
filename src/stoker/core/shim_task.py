"""The life of a shim task: a container or a process with its data, on one host.

Theory of operation. A start is a list of hooks in one written order (`Hook`). A hook is noted in `begun` and on
disk before it is performed, so that a crash in the middle of it is undone like one that finished. An end (exit,
error, terminate) is first noted (`ending`, with its reason: the outcome never changes); then each begun hook is
undone in reverse, one at a time; the last one gone makes the task `terminated`. So a terminated task holds
nothing, and as each hook leaves `begun` by one row only, it is released exactly once.

`wish` says what is to be done now. The shim performs one wish of a task at a time, giving up a start hook in
flight before it undoes it, and asks `wish` again after a restart; performing and undoing are safe to repeat.

Both runtimes walk the same hooks. For the `process` runtime the image is always ready, so it never pulls.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar
from uuid import UUID

from stoker.core.machine import Effect, Event, Machine, Row, Then, ask, pairs, rows, stay
from stoker.core.reason import JobReason


class S(StrEnum):
    PENDING = "pending"
    PREPARING = "preparing"
    PULLING = "pulling"
    CREATING = "creating"
    RUNNING = "running"
    TERMINATED = "terminated"


LIVE = tuple(state for state in S if state is not S.TERMINATED)
STARTING = (S.PENDING, S.PREPARING, S.PULLING, S.CREATING)


class Runtime(StrEnum):
    PROCESS = "process"
    DOCKER = "docker"


class Hook(StrEnum):
    """What a start does, in this order."""

    DIRECTORIES = "directories"
    VOLUMES = "volumes"
    DEVICES = "devices"
    IMAGE = "image"
    NETWORK = "network"
    CONTAINER = "container"


HOOKS = tuple(Hook)
BLAME = {
    Hook.DIRECTORIES: JobReason.EXECUTOR_ERROR,
    Hook.VOLUMES: JobReason.VOLUME_ERROR,
    Hook.DEVICES: JobReason.EXECUTOR_ERROR,
    Hook.IMAGE: JobReason.CREATING_CONTAINER_ERROR,
    Hook.NETWORK: JobReason.PORTS_BINDING_FAILED,
    Hook.CONTAINER: JobReason.CREATING_CONTAINER_ERROR,
}
"""Why a task ends whose hook failed."""


@dataclass(frozen=True, slots=True)
class Port:
    inside: int
    on_host: int


@dataclass(frozen=True)
class ShimTask:
    id: UUID
    """Given by the server, one for each submission of a job; so there is one try, and `attempt` stays 0."""
    runtime: Runtime
    state: S = S.PENDING
    attempt: int = 0
    version: int = 0
    entered_at: float = 0.0
    begun: tuple[Hook, ...] = (Hook.DIRECTORIES,)
    """Hooks that were performed, or may have been: what has to be undone."""
    ending: bool = False
    grace_s: float = 0.0
    gpu_ids: tuple[str, ...] = ()
    ports: tuple[Port, ...] = ()
    container_id: str | None = None
    pulled_bytes: int = 0
    pull_total_bytes: int | None = None
    reason: JobReason | None = None
    message: str = ""
    exit_code: int | None = None
    cleanup_error: str = ""
    cleanup_failures: int = 0
    """In a row, for the hook that is being undone: the shim waits longer after each."""


@dataclass(frozen=True, slots=True)
class Submitted(Event):
    """Submitted again: the same task, no second container."""


@dataclass(frozen=True, slots=True)
class HookDone(Event):
    hook: ClassVar[Hook]


@dataclass(frozen=True, slots=True)
class DirectoriesMade(HookDone):
    hook = Hook.DIRECTORIES


@dataclass(frozen=True, slots=True)
class VolumesMounted(HookDone):
    hook = Hook.VOLUMES


@dataclass(frozen=True, slots=True)
class DevicesTaken(HookDone):
    hook = Hook.DEVICES
    gpu_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageReady(HookDone):
    """The image is here: it was present, it was pulled, or none is wanted."""

    hook = Hook.IMAGE


@dataclass(frozen=True, slots=True)
class NetworkReady(HookDone):
    hook = Hook.NETWORK
    ports: tuple[Port, ...] = ()


@dataclass(frozen=True, slots=True)
class Started(HookDone):
    """The container or the process has started; a process has its own kind of id."""

    hook = Hook.CONTAINER
    container_id: str = ""


@dataclass(frozen=True, slots=True)
class ImageMissing(Event):
    """The image is wanted and not present: the hook goes on by pulling it."""


@dataclass(frozen=True, slots=True)
class PullProgressed(Event):
    pulled_bytes: int
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class HookFailed(Event):
    hook: Hook
    message: str
    reason: JobReason | None = None
    """None: as the hook says."""


@dataclass(frozen=True, slots=True)
class Exited(Event):
    exit_code: int
    message: str = ""
    """The last log lines, when it failed."""
    oom: bool = False


@dataclass(frozen=True, slots=True)
class TerminateAsked(Event):
    grace_s: float = 0.0
    reason: JobReason = JobReason.TERMINATED_BY_SERVER
    message: str = ""


@dataclass(frozen=True, slots=True)
class Undone(Event):
    hook: Hook


@dataclass(frozen=True, slots=True)
class UndoFailed(Event):
    hook: Hook
    message: str


@dataclass(frozen=True, slots=True)
class RemovalAsked(Event):
    """The server has what it wants of the task."""


@dataclass(frozen=True, slots=True)
class Perform(Effect):
    hook: Hook


@dataclass(frozen=True, slots=True)
class Undo(Effect):
    """Release what the hook took, if it took anything. The container is stopped within `grace_s` and kept."""

    hook: Hook
    grace_s: float = 0.0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Forget(Effect):
    """Delete everything of the task from the disk."""


def submit(id: UUID, runtime: Runtime, now: float) -> ShimTask:
    """A new task; its first wish is `wish(task)`, once it is on disk."""
    return ShimTask(id, runtime, entered_at=now)


def wish(task: ShimTask) -> tuple[Effect, ...]:
    """What is to be done for this task now; also after a restart of the shim."""
    if task.ending:
        return _undo(task.begun, task.grace_s, task.cleanup_failures)
    if task.state in STARTING:
        return (Perform(task.begun[-1]),)
    return ()


def _undo(begun: tuple[Hook, ...], grace_s: float, failures: int = 0) -> tuple[Effect, ...]:
    if not begun:
        return ()
    hook = begun[-1]
    return (Undo(hook, grace_s if hook is Hook.CONTAINER else 0.0, failures),)


def go_on(task: ShimTask, event: HookDone, now: float) -> Then:
    hook = HOOKS[len(task.begun)]
    return Then({"begun": (*task.begun, hook)} | _learned(event), (Perform(hook),))


def _learned(event: HookDone) -> dict[str, object]:
    if isinstance(event, DevicesTaken):
        return {"gpu_ids": event.gpu_ids}
    if isinstance(event, NetworkReady):
        return {"ports": event.ports}
    return {}


def pull(task: ShimTask, event: ImageMissing, now: float) -> Then:
    # No new wish: the performer of the image hook goes on by itself.
    return ask(pulled_bytes=0, pull_total_bytes=None)


def progress(task: ShimTask, event: PullProgressed, now: float) -> Then:
    return ask(pulled_bytes=event.pulled_bytes, pull_total_bytes=event.total_bytes)


def run(task: ShimTask, event: Started, now: float) -> Then:
    return ask(container_id=event.container_id)


def end_failed(task: ShimTask, event: HookFailed, now: float) -> Then:
    return ask(*_undo(task.begun, 0.0), ending=True, reason=event.reason or BLAME[event.hook], message=event.message)


def end_exited(task: ShimTask, event: Exited, now: float) -> Then:
    if event.exit_code == 0:
        reason = JobReason.DONE_BY_RUNNER
    else:
        reason = JobReason.OUT_OF_MEMORY if event.oom else JobReason.CONTAINER_EXITED_WITH_ERROR
    wishes = _undo(task.begun, 0.0)
    return ask(*wishes, ending=True, reason=reason, message=event.message, exit_code=event.exit_code)


def end_asked(task: ShimTask, event: TerminateAsked, now: float) -> Then:
    wishes = _undo(task.begun, event.grace_s)
    return ask(*wishes, ending=True, reason=event.reason, message=event.message, grace_s=event.grace_s)


def hurry(task: ShimTask, event: TerminateAsked, now: float) -> Then:
    return ask(*_undo(task.begun, event.grace_s, task.cleanup_failures), grace_s=event.grace_s)


def note_exit(task: ShimTask, event: Exited, now: float) -> Then:
    return ask(exit_code=event.exit_code, message=task.message or event.message)


def undo_next(task: ShimTask, event: Undone, now: float) -> Then:
    left = task.begun[:-1]
    released: dict[Hook, dict[str, object]] = {Hook.DEVICES: {"gpu_ids": ()}, Hook.NETWORK: {"ports": ()}}
    fields = {"begun": left, "cleanup_error": "", "cleanup_failures": 0} | released.get(event.hook, {})
    return Then(fields, _undo(left, task.grace_s))


def finish(task: ShimTask, event: Undone, now: float) -> Then:
    return ask(begun=(), ending=False, cleanup_error="", cleanup_failures=0)


def undo_again(task: ShimTask, event: UndoFailed, now: float) -> Then:
    failures = task.cleanup_failures + 1
    wishes = _undo(task.begun, task.grace_s, failures)
    return ask(*wishes, cleanup_error=event.message, cleanup_failures=failures)


def forget(task: ShimTask, event: RemovalAsked, now: float) -> Then:
    return ask(Forget())


def in_turn(task: ShimTask, event: HookDone | HookFailed, now: float) -> bool:
    """It tells of the hook that is being performed, not of one that was told before."""
    return not task.ending and task.begun[-1] is event.hook


def image_wanted(task: ShimTask, event: ImageMissing, now: float) -> bool:
    return not task.ending and task.begun[-1] is Hook.IMAGE and task.runtime is Runtime.DOCKER


def not_ending(task: ShimTask, event: Event, now: float) -> bool:
    return not task.ending


def sooner(task: ShimTask, event: TerminateAsked, now: float) -> bool:
    """An abort overtakes a stop, while the container is still given its grace."""
    return task.ending and task.begun[-1:] == (Hook.CONTAINER,) and event.grace_s < task.grace_s


def exit_unknown(task: ShimTask, event: Exited, now: float) -> bool:
    return task.ending and Hook.CONTAINER in task.begun and task.exit_code is None


def last_undone(task: ShimTask, event: Undone, now: float) -> bool:
    return task.ending and task.begun == (event.hook,)


def undoing(task: ShimTask, event: Undone | UndoFailed, now: float) -> bool:
    return task.ending and task.begun[-1] is event.hook


STARTS = (DirectoriesMade, VolumesMounted, DevicesTaken, ImageMissing, PullProgressed, ImageReady, NetworkReady,
          Started, HookFailed)  # fmt: skip

SHIM_TASK: Machine[ShimTask] = Machine("shim task", (S.PENDING,), (
    #   from           event            to            then        when
    Row(S.PENDING,     DirectoriesMade, S.PENDING,    go_on,      in_turn),
    Row(S.PENDING,     VolumesMounted,  S.PENDING,    go_on,      in_turn),
    Row(S.PENDING,     DevicesTaken,    S.PREPARING,  go_on,      in_turn),
    Row(S.PREPARING,   ImageMissing,    S.PULLING,    pull,       image_wanted),
    Row(S.PULLING,     PullProgressed,  S.PULLING,    progress,   not_ending),
    Row(S.PREPARING,   ImageReady,      S.CREATING,   go_on,      in_turn),
    Row(S.PULLING,     ImageReady,      S.CREATING,   go_on,      in_turn),
    Row(S.CREATING,    NetworkReady,    S.CREATING,   go_on,      in_turn),
    Row(S.CREATING,    Started,         S.RUNNING,    run,        in_turn),
    *stay(STARTING,    HookFailed,                    end_failed, in_turn),
    Row(S.RUNNING,     Exited,          S.RUNNING,    end_exited, not_ending),
    *stay(LIVE,        TerminateAsked,                end_asked,  not_ending),
    *stay((S.CREATING, S.RUNNING), TerminateAsked,    hurry,      sooner),
    *stay((S.CREATING, S.RUNNING), Exited,            note_exit,  exit_unknown),
    *rows(LIVE,        Undone,          S.TERMINATED, finish,     last_undone),
    *stay(LIVE,        Undone,                        undo_next,  undoing),
    *stay(LIVE,        UndoFailed,                    undo_again, undoing),
    Row(S.TERMINATED,  RemovalAsked,    S.TERMINATED, forget),
), stale=(
    pairs(S, Submitted, TerminateAsked, Undone, UndoFailed, *STARTS)
    - pairs((S.PENDING,), ImageMissing, PullProgressed, ImageReady, NetworkReady, Started)
    - pairs((S.PREPARING,), PullProgressed, NetworkReady, Started)
    - pairs((S.PULLING,), NetworkReady, Started)
    | pairs((S.RUNNING, S.TERMINATED), Exited)
))  # fmt: skip
