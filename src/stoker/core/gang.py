"""What waits for machines (`Gang`), and the instances it may be placed on (`InstanceRoom`)."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from stoker.core.block import Blocks
from stoker.core.ids import FleetId, InstanceId, JobId, ProjectId, RunId, VolumeId
from stoker.core.offer import Site
from stoker.core.resources import Request


class OnNoCapacity(Enum):
    QUEUE = "queue"
    FAIL = "fail"


class Claim(NamedTuple):
    """A volume that no other gang may get in the same plan: it is for one, or settles where its first job lands."""

    id: VolumeId
    name: str


@dataclass(frozen=True, slots=True)
class Gang:
    """The jobs of one replica: placed together or not at all."""

    run_id: RunId
    replica: int
    submitted_at: float
    jobs: tuple[tuple[JobId, Request], ...]
    priority: int = 50
    whole: bool = False  # a replica of several nodes: each job takes a whole instance
    on_no_capacity: OnNoCapacity = OnNoCapacity.QUEUE
    fleets: frozenset[FleetId] | None = None  # None: any
    absent: tuple[str, ...] = ()  # names of fleets that it may use and that are not there any more
    ready: bool = True  # False: an earlier submission of it has not finished yet
    project_id: ProjectId | None = None
    refused: str = ""  # why there is no fleet that would let it in, where there is none
    only: InstanceId | None = None  # a volume of it is there and nowhere else
    tied: str = ""  # that, in words
    claims: tuple[Claim, ...] = ()
    barred: str = ""  # why its volumes keep it from any instance
    hopeless: bool = False  # for ever

    @property
    def turn(self) -> tuple[int, float, int, int]:
        """Its order in the queue: priority, then age, then id."""
        return (-self.priority, self.submitted_at, self.run_id.int, self.replica)

    def at(self, run_id: RunId, replica: int, submitted_at: float) -> "Gang":
        """Another one that asks for the same. Thousands wait, and `replace` would cost more than their plan."""
        return Gang(
            run_id, replica, submitted_at, self.jobs, self.priority, self.whole, self.on_no_capacity, self.fleets,
            self.absent, self.ready, self.project_id, self.refused, self.only, self.tied, self.claims, self.barred,
            self.hopeless,
        )  # fmt: skip

    def like(self, other: "Gang") -> bool:
        """Made by `at` of the same one. Looks at no more than it can see at once."""
        return (
            self.jobs is other.jobs
            and self.fleets is other.fleets
            and self.absent is other.absent
            and self.project_id is other.project_id
            and self.whole is other.whole
            and self.only is other.only
        )

    def __str__(self) -> str:
        return f"{self.run_id}/{self.replica}"


def ease(request: Request) -> tuple[float, ...]:
    """Sorts the largest and most particular first: what is hard to place chooses before what is easy."""
    gpu = request.gpu
    card = (gpu.count.lo, float(bool(gpu.names)), gpu.memory_mb.lo) if gpu else (0.0, 0.0, 0.0)
    return tuple(-amount for amount in (*card, request.cpu.lo, request.memory_mb.lo, request.disk_mb.lo))


@dataclass(frozen=True, slots=True)
class InstanceRoom:
    """An unfinished instance as the placer sees it."""

    id: InstanceId
    blocks: Blocks
    fleet_id: FleetId | None = None
    ready: bool = True  # IDLE or BUSY; False: PENDING or PROVISIONING, where room may be reserved
    barred: str = ""  # why nothing may be placed on it: cordoned, unreachable, unhealthy, TERMINATING
    lasting: int = 0  # blocks held by jobs without an end (services): waiting does not free them
    name: str = ""  # as people know it
    project_id: ProjectId | None = None  # the only one that it serves; None: any
    site: Site = None  # where it is; the nodes of one gang are all at one site
