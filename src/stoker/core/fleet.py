"""Keeps a fleet between its minimum and its maximum, without paying for machines that nobody uses."""

from collections.abc import Iterable
from dataclasses import dataclass

from stoker.core.errors import UserError
from stoker.core.ids import InstanceId


@dataclass(frozen=True, slots=True)
class Fleet:
    """`max_nodes` None: without end. `idle_duration_s` None: idle instances are never retired."""

    min_nodes: int = 0
    max_nodes: int | None = None
    idle_duration_s: float | None = 300.0
    deleting: bool = False

    def __post_init__(self) -> None:
        if self.min_nodes < 0 or (self.max_nodes is not None and self.max_nodes < self.min_nodes):
            raise UserError(
                f"fleet: {self.min_nodes} to {self.max_nodes} nodes is not a range.", hint="Write nodes: 0..4, or 2."
            )
        if self.idle_duration_s is not None and self.idle_duration_s < 0:
            raise UserError(f"fleet: idle_duration cannot be {self.idle_duration_s:g} s.", hint="Write 5m, or off.")


@dataclass(frozen=True, slots=True)
class FleetInstance:
    """An instance that is not TERMINATED yet. `idle_since` None: not IDLE, so it is busy or on its way."""

    id: InstanceId
    idle_since: float | None = None
    reserved: bool = False  # a placement counts on it, though no job has arrived
    leaving: bool = False  # TERMINATING
    cordoned: bool = False
    fits: bool = True  # the fleet as it is now would still make such an instance

    @property
    def free(self) -> bool:
        return self.idle_since is not None and not self.reserved and not self.leaving


@dataclass(frozen=True, slots=True)
class Create:
    n: int


@dataclass(frozen=True, slots=True)
class Retire:
    instance_id: InstanceId
    reason: str


Action = Create | Retire


def plan_fleet(fleet: Fleet, instances: Iterable[FleetInstance], now: float) -> tuple[Action, ...]:
    """Retirements first, oldest idle first. Planning again on the result gives nothing.

    Instances that no longer fit do not count for the minimum, since they go as soon as they are idle; all that
    exist count for the maximum, the leaving ones too, since they cost until they are gone. A cordoned one
    is in somebody's hands: it is not retired for being idle.
    """
    seen = sorted(instances, key=lambda one: one.id.int)
    staying = [one for one in seen if not one.leaving]
    if fleet.deleting:
        return tuple(Retire(one.id, "the fleet is being deleted") for one in staying)
    retired = [Retire(one.id, "it no longer fits the fleet") for one in staying if not one.fits and one.free]
    fitting = [one for one in staying if one.fits]
    kept = len(fitting)
    in_excess = len(staying) - len(retired) - (fleet.max_nodes if fleet.max_nodes is not None else len(staying))
    for one in sorted((one for one in fitting if one.free), key=lambda one: (one.idle_since or 0.0, one.id.int)):
        idle_s = now - (one.idle_since or 0.0)
        if kept <= fleet.min_nodes:
            break
        if in_excess > 0:
            retired.append(Retire(one.id, f"the fleet has more than its maximum of {fleet.max_nodes} nodes"))
        elif fleet.idle_duration_s is not None and idle_s >= fleet.idle_duration_s and not one.cordoned:
            retired.append(Retire(one.id, f"idle for {idle_s:.0f} s, longer than {fleet.idle_duration_s:.0f} s"))
        else:
            continue
        kept, in_excess = kept - 1, in_excess - 1
    missing = fleet.min_nodes - kept
    if fleet.max_nodes is not None:
        missing = min(missing, fleet.max_nodes - len(seen))
    return (*retired, *((Create(missing),) if missing > 0 else ()))
