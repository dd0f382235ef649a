"""What is said of a run: its states, the tally of its jobs, its record, the facts and the wishes."""

from dataclasses import dataclass, field
from enum import StrEnum
from uuid import UUID

from stoker.core.evolve import evolve
from stoker.core.ids import ProjectId, RunId
from stoker.core.job_facts import FINISHED as JOB_FINISHED
from stoker.core.job_facts import Job
from stoker.core.job_facts import S as J
from stoker.core.machine import Effect, Event
from stoker.core.policy import Policy
from stoker.core.reason import JobReason, RunReason
from stoker.core.retry import FIRST_TRY, Budget, Fate


class S(StrEnum):
    PENDING = "PENDING"
    SUBMITTED = "SUBMITTED"
    PROVISIONING = "PROVISIONING"
    RUNNING = "RUNNING"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"
    FAILED = "FAILED"
    DONE = "DONE"


ACTIVE = (S.SUBMITTED, S.PROVISIONING, S.RUNNING)
FINISHED = frozenset({S.TERMINATED, S.FAILED, S.DONE})

_COUNTED = {J.SUBMITTED: "submitted", J.PROVISIONING: "starting", J.PULLING: "starting", J.RUNNING: "running"}


def counted_as(job: Job) -> str:
    """A job that is ending counts by its fate, as if it had ended already."""
    return _COUNTED.get(job.state) or job.fate.value


@dataclass(frozen=True)
class Tally:
    """The latest submission of each job, counted; kept up by every change, so no step reads ten thousand jobs."""

    submitted: int = 0
    starting: int = 0
    running: int = 0
    done: int = 0
    retry: int = 0
    failed: int = 0
    exhausted: int = 0
    limit: int = 0
    gone: int = 0
    stopped: int = 0
    unfinished: int = 0
    """Every submission that has not finished, earlier ones too."""
    master_done: bool = False

    @property
    def active(self) -> int:
        return self.submitted + self.starting + self.running

    @property
    def contributing(self) -> int:
        """Jobs that were scaled down do not contribute."""
        return self.active + self.done + self.retry + self.failed + self.exhausted + self.limit + self.stopped

    def moved(self, before: Job | None, after: Job) -> "Tally":
        """Itself when the job counts as it did."""
        changed: dict[str, int] = {}
        if before is not None:
            self._count(changed, before, -1)
        self._count(changed, after, 1)
        if after.latest and after.replica == 0 and after.node == 0:
            changed["master_done"] = after.fate is Fate.DONE
        if all(getattr(self, name) == count for name, count in changed.items()):
            return self
        return evolve(self, changed)

    def _count(self, changed: dict[str, int], job: Job, one: int) -> None:
        if job.latest:
            key = counted_as(job)
            changed[key] = changed.get(key, getattr(self, key)) + one
        if job.state not in JOB_FINISHED:
            changed["unfinished"] = changed.get("unfinished", self.unfinished) + one


NO_JOBS = Tally()


@dataclass(frozen=True)
class Run:
    id: RunId
    project_id: ProjectId
    name: str
    policy: Policy = field(repr=False)
    submitted_at: float
    state: S = S.SUBMITTED
    attempt: int = 0
    version: int = 0
    entered_at: float = 0.0
    round: int = 1
    """Counts the triggers of a schedule; jobs of an earlier round are history."""
    replicas: int = 1
    """How many are wanted now; zero for a service that is scaled to zero."""
    tally: Tally = NO_JOBS
    reason: RunReason | None = None
    message: str = ""
    cause: JobReason | None = None
    """Why the job that decided the outcome ended."""
    exit_code: int | None = None
    backoff_step: int = 0
    resume_at: float | None = None
    """PENDING until then."""
    trigger_at: float | None = None
    """The next cron time."""
    ended_at: float | None = None
    """When the last of its finished jobs ended."""
    queued: bool = False
    """A trigger came while the last round still ran, and overlap says it waits."""
    last_reason: RunReason | None = None
    """Why the last round of a schedule ended; it stays while the next one runs."""
    owner_id: UUID | None = None
    owner_attempt: int = 0

    @property
    def phase(self) -> str:
        return self.state

    def jitter(self, step: int) -> float:
        """Spreads runs that failed together; its own id is all the dice it needs."""
        return (self.id.int >> 8 * (step % 8)) % 1000 / 1000


# Facts.


@dataclass(frozen=True, slots=True)
class JobsChanged(Event):
    """A job of the run counts differently than before. The rest describes that job and its replica."""

    replica: int
    replica_active: int
    replica_retry: bool
    replica_done: int = 0
    fate: Fate = Fate.OPEN
    reason: JobReason | None = None
    exit_code: int | None = None
    message: str = ""
    ran_s: float = 0.0
    budget: Budget = FIRST_TRY


@dataclass(frozen=True, slots=True)
class StopAsked(Event):
    """A person wants it to end in good order."""


@dataclass(frozen=True, slots=True)
class AbortAsked(Event):
    """A person wants it to end without grace."""


@dataclass(frozen=True, slots=True)
class Broke(Event):
    """The server or the gateway failed it: SERVER_ERROR, GATEWAY_ERROR."""

    reason: RunReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class ReplicasWanted(Event):
    """The autoscaler's word."""

    replicas: int


@dataclass(frozen=True, slots=True)
class TriggerAsked(Event):
    """A person wants a round of its schedule now."""


@dataclass(frozen=True, slots=True)
class Amended(Event):
    """Changes the policy, which every job reads: they are all loaded for it."""


@dataclass(frozen=True, slots=True)
class PauseAsked(Amended):
    """A person wants its schedule to trigger nothing."""


@dataclass(frozen=True, slots=True)
class ResumeAsked(Amended):
    """A person lets its schedule go on."""


@dataclass(frozen=True, slots=True)
class HoldAsked(Amended):
    """A person wants nothing of it to be placed."""


@dataclass(frozen=True, slots=True)
class ReleaseAsked(Amended):
    """A person lets it be placed."""


@dataclass(frozen=True, slots=True)
class Revised(Amended):
    """A person applied a changed configuration, having seen the run at this version."""

    policy: Policy
    version: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Swept(Event):
    """The next page of jobs is loaded; go on with what the run wants of all its jobs."""

    cut: bool = False
    """An abort is on its way through the pages."""


# Wishes.


@dataclass(frozen=True, slots=True)
class Sweep(Effect):
    """There are more jobs than one step loads: come back with the next page."""

    cut: bool = False


@dataclass(frozen=True, slots=True)
class TellOwner(Effect):
    """Tell the managed task that launched this run."""


# Orders: wishes that the same commit fulfils on the run's own jobs.


@dataclass(frozen=True, slots=True)
class Order(Effect):
    pass


@dataclass(frozen=True, slots=True)
class EndJobs(Order):
    reason: JobReason


@dataclass(frozen=True, slots=True)
class CutGrace(Order):
    pass


@dataclass(frozen=True, slots=True)
class Repolicy(Order):
    """Every unfinished job goes by the run's new policy, also in what it waits for."""


@dataclass(frozen=True, slots=True)
class EndReplica(Order):
    """End what is left of a failed replica; it will be tried again as a whole, on the budget of the job that failed."""

    replica: int
    budget: Budget


@dataclass(frozen=True, slots=True)
class Resubmit(Order):
    """New submissions for what may be retried and for what belongs to an earlier round.

    `in_place`: beside others that run, so the run's own backoff does not hold up what fails again and again.
    """

    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Scale(Order):
    """Make the replicas that are wanted and missing; end those that are too many."""
