"""What is said of an instance: its states, its record, the facts and the wishes."""

from dataclasses import dataclass
from enum import StrEnum

from stoker.core.block import Blocks
from stoker.core.ids import FleetId, InstanceId
from stoker.core.machine import Effect, Event
from stoker.core.resources import Capacity


class S(StrEnum):
    PENDING = "PENDING"
    PROVISIONING = "PROVISIONING"
    IDLE = "IDLE"
    BUSY = "BUSY"
    TERMINATING = "TERMINATING"
    TERMINATED = "TERMINATED"


COMING = (S.PENDING, S.PROVISIONING)
UP = (S.IDLE, S.BUSY)
LIVE = (*COMING, *UP)


@dataclass(frozen=True)
class Instance:
    id: InstanceId
    fleet_id: FleetId | None
    backend: str
    blocks: Blocks
    state: S = S.PENDING
    attempt: int = 0
    version: int = 0
    entered_at: float = 0.0
    owned: bool = False
    """A host of the user's: it is never destroyed, and may be silent without end."""
    shim: bool = True
    handle: str = ""
    unreachable_since: float | None = None
    health: str = ""
    """What is wrong with its host, in its shim's words; then nothing new is placed on it. Nothing: it is well."""
    cordoned: bool = False
    drain_at: float | None = None
    """Set while draining: jobs that are still there at this moment are interrupted."""
    destroy_at: float | None = None
    """Set while TERMINATING with jobs on it: until then they may stop in good order."""
    provisioning_limit_s: float = 600.0
    price: float = 0.0
    spot: bool = False
    offer: str = ""
    location: str = ""
    launched_at: float | None = None
    """When the provider accepted the launch; it costs from then on until `ended_at`."""
    ended_at: float | None = None
    failed_at: float | None = None
    """When it was refused, preempted or lost, which speaks against its offer."""
    message: str = ""

    @property
    def phase(self) -> str:
        return self.state

    @property
    def open(self) -> bool:
        """May a job be placed here?"""
        at_hand = self.state in LIVE and not self.unmet
        return at_hand and not self.cordoned and self.unreachable_since is None and not self.health

    @property
    def unmet(self) -> bool:
        """A host that somebody named and that was not reached yet: nobody knows what it has."""
        return self.owned and not self.blocks.capacity.cpu


# Facts.


@dataclass(frozen=True, slots=True)
class Launched(Event):
    """The provider accepted the launch, or the SSH host was reached."""

    handle: str
    capacity: Capacity | None = None
    """What it has, where that was not known before, and into how many blocks it is divided."""
    total: int = 1


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """The provider refused: no capacity, denied. It may have created something all the same."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class ShimAnswered(Event):
    capacity: Capacity | None = None


@dataclass(frozen=True, slots=True)
class Silent(Event):
    """Its shim does not answer."""


@dataclass(frozen=True, slots=True)
class Heard(Event):
    """Its shim answers again."""


@dataclass(frozen=True, slots=True)
class Examined(Event):
    """Its shim says what is wrong with its host: a disk that is nearly full, a GPU that is gone; or nothing is."""

    health: str
    docker: bool | None = None
    """Whether a container engine answers there; None: that was not said."""


@dataclass(frozen=True, slots=True)
class PreemptionNoticed(Event):
    """The provider will take the machine back after `notice_s`."""

    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Gone(Event):
    """The provider, or a person, says that the machine is gone."""

    message: str = "the machine is gone"


@dataclass(frozen=True, slots=True)
class CordonAsked(Event):
    on: bool = True


@dataclass(frozen=True, slots=True)
class DrainAsked(Event):
    deadline_at: float


@dataclass(frozen=True, slots=True)
class DeleteAsked(Event):
    force: bool = False


@dataclass(frozen=True, slots=True)
class Unwanted(Event):
    """Its fleet does not want it any more: idle too long, does not fit, the fleet is deleted."""

    message: str = ""


@dataclass(frozen=True, slots=True)
class Divided(Event):
    """Its fleet wants it divided into so many blocks. Said again once no job holds one."""

    total: int


@dataclass(frozen=True, slots=True)
class Destroyed(Event):
    """Confirmed: the machine is gone, or our agent and its traces are."""


# Wishes.


@dataclass(frozen=True, slots=True)
class Launch(Effect):
    """Ask the provider for the machine; keyed by our id."""


@dataclass(frozen=True, slots=True)
class Destroy(Effect):
    """Find whatever carries our tag and destroy it, until that is confirmed."""


class Tidings(StrEnum):
    PLACED = "placed"
    DRAINING = "draining"
    """At `drain_at`, or not any more."""
    NOTICED = "noticed"
    """It leaves at `destroy_at`: whoever wants to use that time may."""
    INTERRUPTED = "interrupted"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class TellJobs(Effect):
    """Tell the jobs on this instance. A wish, not a send: runs are locked before instances."""

    tidings: str
