"""What is said of a job: its states, its record, the facts that reach it and the wishes it has."""

from dataclasses import dataclass, field
from enum import StrEnum

from stoker.core.ids import InstanceId, JobId, RunId
from stoker.core.machine import Effect, Event
from stoker.core.policy import Policy
from stoker.core.reason import JobReason
from stoker.core.retry import FIRST_TRY, Budget, Fate


class S(StrEnum):
    SUBMITTED = "SUBMITTED"
    PROVISIONING = "PROVISIONING"
    PULLING = "PULLING"
    RUNNING = "RUNNING"
    TERMINATING = "TERMINATING"
    DONE = "DONE"
    FAILED = "FAILED"
    TERMINATED = "TERMINATED"
    ABORTED = "ABORTED"


PLACED = (S.PROVISIONING, S.PULLING, S.RUNNING)
ACTIVE = (S.SUBMITTED, *PLACED)
FINISHED = frozenset({S.DONE, S.FAILED, S.TERMINATED, S.ABORTED})


class Cleanup(StrEnum):
    """What the terminating phase does next, in this order."""

    UNREGISTER = "unregister"
    STOP = "stop"
    REMOVE = "remove"
    DETACH = "detach"
    RELEASE = "release"


@dataclass(frozen=True)
class Job:
    id: JobId
    run_id: RunId
    replica: int
    node: int
    attempt: int
    """The number of this submission: news of an earlier one falls on the floor."""
    policy: Policy = field(repr=False)
    submitted_at: float
    round: int = 1
    latest: bool = True
    """False once a new submission took its place."""
    ready_at: float | None = None
    """Not placed before then: it failed more than once in a row beside others that run."""
    state: S = S.SUBMITTED
    version: int = 0
    entered_at: float = 0.0
    instance_id: InstanceId | None = None
    blocks: tuple[int, ...] = ()
    owned: bool = True
    shim: bool = True
    running_at: float | None = None
    leave_at: float | None = None
    """When it is stopped because its machine leaves; its program is warned before, as its policy says."""
    unreachable_since: float | None = None
    reason: JobReason | None = None
    message: str = ""
    exit_code: int | None = None
    exit_signal: int | None = None
    fate: Fate = Fate.OPEN
    budget: Budget = FIRST_TRY
    """What this submission may use; once it ends, what the next one starts with."""
    cleanup: Cleanup | None = None
    exited_at: float | None = None
    """When its commands ended, which may be long before anybody heard of it."""
    gone: bool = False
    remove_at: float | None = None

    @property
    def phase(self) -> str:
        """A wish of this job is current while its phase is the one in which it was wished."""
        return f"{self.state}:{self.cleanup}" if self.cleanup else self.state

    @property
    def exited(self) -> bool:
        return self.exited_at is not None

    def ran_s(self, now: float) -> float:
        """How long it ran as far as anybody saw: silence proves no health."""
        if self.running_at is None:
            return 0.0
        seen = (one for one in (self.exited_at, self.unreachable_since, now) if one is not None)
        return next(seen) - self.running_at


# Facts.


@dataclass(frozen=True, slots=True)
class Reserved(Event):
    """A machine is kept for it: one that its provider has not accepted yet, or one that is there while another node of
    its replica waits for such a machine."""

    instance_id: InstanceId
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Placed(Event):
    """Its machine is there, or accepted by its provider. Said to all nodes of a replica at once, or to none."""

    instance_id: InstanceId
    blocks: tuple[int, ...]
    owned: bool = True
    shim: bool = True
    where: str = ""  # the instance's name, for the story


@dataclass(frozen=True, slots=True)
class Parted(Event):
    """Another node of its replica has lost the machine that was kept for it: they wait again together."""


@dataclass(frozen=True, slots=True)
class NoCapacity(Event):
    message: str = ""


@dataclass(frozen=True, slots=True)
class VolumeFailed(Event):
    """A volume of it has failed or is no more: it would wait for ever."""

    message: str


@dataclass(frozen=True, slots=True)
class TaskAccepted(Event):
    """The shim took the task."""


@dataclass(frozen=True, slots=True)
class Gathered(Event):
    """All nodes of its replica have their machines, and it is its turn to begin."""


@dataclass(frozen=True, slots=True)
class RunnerAccepted(Event):
    """The runner took job spec and code."""

    max_duration_s: float | None = None
    """What it counts by, without end where there is no such limit; None: that was not said."""


@dataclass(frozen=True, slots=True)
class Exited(Event):
    exit_code: int = 0
    signal: int | None = None
    oom: bool = False
    setup: bool = False
    ago_s: float = 0.0
    """By the host's own clock, when it told: nobody may have been there to hear it at once."""


@dataclass(frozen=True, slots=True)
class AgentFailed(Event):
    """Shim or runner could not do its part: container, ports, volume, log quota, executor."""

    reason: JobReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class LimitExceeded(Event):
    """Somebody who measures (time, silence, inactivity, utilisation) found a limit exceeded."""

    reason: JobReason
    message: str = ""
    ended: Exited | None = None
    """How its commands ended, where an agent has stopped them by itself."""


@dataclass(frozen=True, slots=True)
class Silent(Event):
    """Its agent does not answer. Unreachable is not dead."""


@dataclass(frozen=True, slots=True)
class Heard(Event):
    """Its agent answers again."""


@dataclass(frozen=True, slots=True)
class Interrupted(Event):
    """Its machine is about to leave (preemption notice, drain, forced delete) but still there."""

    instance_id: InstanceId
    message: str = ""
    leaves_at: float | None = None
    """Given with a notice: until then it is there. None: nobody may count on it any more."""
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Draining(Event):
    """Its machine is drained: whoever is still there at that moment is interrupted. None: not any more."""

    instance_id: InstanceId
    drain_at: float | None


@dataclass(frozen=True, slots=True)
class InstanceGone(Event):
    """The provider, or a person, says that its machine is gone: nothing of the job runs any more."""

    instance_id: InstanceId
    message: str = ""


@dataclass(frozen=True, slots=True)
class EndAsked(Event):
    """Its run ends it: the run ends or scales down, or another node of the replica failed."""

    reason: JobReason
    fate: Fate = Fate.STOPPED
    message: str = ""
    budget: Budget | None = None
    """What its next submission starts with; None leaves it what it has."""


@dataclass(frozen=True, slots=True)
class GraceCut(Event):
    """A person aborts while it is stopping."""


@dataclass(frozen=True, slots=True)
class CleanedUp(Event):
    step: Cleanup


@dataclass(frozen=True, slots=True)
class Released(Event):
    """Nothing is held any more."""


@dataclass(frozen=True, slots=True)
class Taken(Event):
    """To the instance: a job was given these blocks; `reserved` when it waits for the machine to come."""

    job_id: JobId
    blocks: tuple[int, ...]
    reserved: bool = False


@dataclass(frozen=True, slots=True)
class Freed(Event):
    """To the instance: this job gives its blocks back."""

    job_id: JobId


# Wishes towards the agents.


@dataclass(frozen=True, slots=True)
class StartTask(Effect):
    """Give the task to the shim."""

    alone: bool = True
    """Its job may be given to the runner at once: no other node has to be there first."""


@dataclass(frozen=True, slots=True)
class SubmitJob(Effect):
    """Give job spec and code to the runner."""


@dataclass(frozen=True, slots=True)
class Unregister(Effect):
    """Take the replica out of traffic."""


@dataclass(frozen=True, slots=True)
class Warn(Effect):
    """Tell the runner when the job will be ended and why, so that it warns the program. None: it will not be."""

    at: float | None
    deadline: str


@dataclass(frozen=True, slots=True)
class AskStop(Effect):
    """Ask the runner to stop; its end is news of its own. Its grace may have changed since it was started."""

    grace_s: float | None = None


@dataclass(frozen=True, slots=True)
class RemoveTask(Effect):
    """Stop and remove the shim task. How its commands ended is told before it is removed, unless that is known. They
    may run though nobody has heard of it: then they have the same grace as others."""

    known: bool = False
    grace_s: float = 0.0


@dataclass(frozen=True, slots=True)
class DetachVolumes(Effect):
    """Detach the volumes, by force once `force_at` has passed."""

    force_at: float


@dataclass(frozen=True, slots=True)
class Release(Effect):
    """Nothing to do outside; comes back as CleanedUp(RELEASE)."""
