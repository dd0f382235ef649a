"""What is said of a volume: its states, its record, the facts that reach it and the wishes it has."""

from dataclasses import dataclass
from enum import StrEnum

from stoker.core.ids import FleetId, InstanceId, JobId, ProjectId, VolumeId
from stoker.core.machine import Effect, Event


class S(StrEnum):
    SUBMITTED = "SUBMITTED"
    PROVISIONING = "PROVISIONING"
    ACTIVE = "ACTIVE"
    FAILED = "FAILED"
    DELETING = "DELETING"
    DELETED = "DELETED"


COMING = (S.SUBMITTED, S.PROVISIONING)
THERE = (S.ACTIVE, S.FAILED)


class Kind(StrEnum):
    """What it is made of, which says where it can be used and by how many."""

    LOCAL = "local"
    """On the disk of one instance."""
    NFS = "nfs"
    """A server's, mounted wherever a job is."""
    DUMMY = "dummy"
    """A disk of the dummy backend, which is attached to one machine at a time."""


@dataclass(frozen=True)
class Volume:
    id: VolumeId
    project_id: ProjectId
    name: str
    kind: Kind
    exclusive: bool = False
    """One job at a time."""
    size_mb: int | None = None
    source: str = ""
    """Of nfs, `server:/path`."""
    fleet_id: FleetId | None = None
    """Where a local one may be made; None: anywhere."""
    instance_id: InstanceId | None = None
    """Where a local one is. None: where the first job that wants it lands."""
    named: bool = False
    """That instance was named by a person, and no other will do."""
    used: bool = False
    """A job ran with it: what is in it is somebody's."""
    held: tuple[JobId, ...] = ()
    """The jobs that it is attached to."""
    state: S = S.SUBMITTED
    attempt: int = 0
    version: int = 0
    entered_at: float = 0.0
    handle: str = ""
    """Its name at its provider."""
    message: str = ""

    @property
    def phase(self) -> str:
        return self.state


# Facts.


@dataclass(frozen=True, slots=True)
class Accepted(Event):
    """The provider accepted it; it may take a while until it is there."""

    handle: str


@dataclass(frozen=True, slots=True)
class Provisioned(Event):
    """It is there, or will be where its first job lands."""


@dataclass(frozen=True, slots=True)
class ProvisionFailed(Event):
    """Nobody will make it: told in the provider's or the host's own words."""

    message: str


@dataclass(frozen=True, slots=True)
class Attached(Event):
    """By the commit that gives the job its machine."""

    job_id: JobId
    instance_id: InstanceId


@dataclass(frozen=True, slots=True)
class Detached(Event):
    """By the commit that releases the job, or takes back the machine that was kept for it."""

    job_id: JobId
    began: bool = False
    """Its host was told of the job, and may have made the volume for it."""
    ran: bool = False


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """The instance that it was on is gone."""

    instance_id: InstanceId
    message: str = ""


@dataclass(frozen=True, slots=True)
class DeleteAsked(Event):
    """With all that is in it."""


@dataclass(frozen=True, slots=True)
class Removed(Event):
    """Confirmed: nothing of it is left, neither on a host nor at a provider."""


# Wishes.


@dataclass(frozen=True, slots=True)
class MakeVolume(Effect):
    """Have it made; keyed by our id."""


@dataclass(frozen=True, slots=True)
class AwaitVolume(Effect):
    """Ask its provider until it is there."""


@dataclass(frozen=True, slots=True)
class RemoveVolume(Effect):
    """Remove it with all that is in it, until that is confirmed."""
