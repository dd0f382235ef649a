"""Keeps a fleet between its minimum and its maximum, without paying for machines that nobody uses."""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from stoker.core.block import Blocks, divide
from stoker.core.errors import UserError
from stoker.core.evolve import evolve
from stoker.core.ids import FleetId, InstanceId, ProjectId
from stoker.core.instance_facts import Instance, S
from stoker.core.offer import ANYTHING, FleetRoom, Offer, Site, SpotPolicy
from stoker.core.resources import Request
from stoker.core.route import SSH


@dataclass(frozen=True, slots=True)
class Fleet:
    """A fleet's policy. `max_nodes` None: without end. `idle_duration_s` None: idle instances are never retired."""

    min_nodes: int = 0
    max_nodes: int | None = None
    idle_duration_s: float | None = 300.0
    deleting: bool = False
    backends: tuple[str, ...] = ()
    """Where its machines may be launched; none for a fleet of hosts that are simply there."""
    spot_policy: SpotPolicy = SpotPolicy.AUTO
    max_price: float | None = None
    forced: bool = False
    """While it is deleted: what runs on its machines is interrupted."""
    cluster: bool = False
    """All its machines are at one site."""
    blocks: int | str | None = None
    """How each of its machines is divided; None: as it is offered."""
    resources: Request = ANYTHING
    """Which machines it may be made of."""
    allow_privileged: bool | None = None
    """Whether jobs may be root on its hosts: in privileged containers, or with the container engine inside. None: on
    the server's own host, as long as nobody but one person uses the server."""
    hosts: tuple[tuple[str, int | str | None], ...] = ()
    """The hosts of people that it is made of, each with its own division if it has one; none where machines are
    launched."""

    def __post_init__(self) -> None:
        if self.min_nodes < 0 or (self.max_nodes is not None and self.max_nodes < self.min_nodes):
            raise UserError(
                f"fleet: {self.min_nodes} to {self.max_nodes} nodes is not a range.", hint="Write nodes: 0..4, or 2."
            )
        if self.idle_duration_s is not None and self.idle_duration_s < 0:
            raise UserError(f"fleet: idle_duration cannot be {self.idle_duration_s:g} s.", hint="Write 5m, or off.")

    def room(self, id: FleetId, project_id: ProjectId | None, instances: Sequence[Instance] = ()) -> FleetRoom | None:
        """What it still allows to launch beside what it has; None where nothing is ever launched."""
        if not self.backends or self.deleting:
            return None
        left = None if self.max_nodes is None else max(0, self.max_nodes - len(instances))
        return FleetRoom(
            id, left, self.spot_policy, self.max_price, frozenset(self.backends), project_id, self.resources,
            self.blocks, self.cluster, home(instances) if self.cluster else None,
        )  # fmt: skip

    def divides(self, one: Instance) -> int | None:
        """Into how many blocks an instance of it has to be divided anew; None: it is as it should be, or cannot be."""
        blocks = self.blocks_of(one)
        if blocks is None or (self.hosts and not one.blocks.capacity.cpu):
            # What a host has is not known before it was reached.
            return None
        try:
            total = divide(one.blocks.capacity, blocks)
        except UserError:
            return None
        return None if total == one.blocks.total else total

    def blocks_of(self, one: Instance) -> int | str | None:
        own = dict(self.hosts).get(one.location) if self.hosts else None
        return self.blocks if own is None else own

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults; stored with the fleet."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: _plain(value) for name, value in values.items() if value != _DEFAULTS[name]}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Fleet":
        return Fleet(**{name: _READERS[name](given) if name in _READERS else given for name, given in value.items()})


class Reach(NamedTuple):
    """A fleet, and the most instances that it can ever have at once; None: without end."""

    name: str
    most: int | None


def reach_of(name: str, fleet: Fleet, instances: int) -> Reach:
    """Of hosts that are simply there, those that are there; of what it launches, as many as it may."""
    if not fleet.backends:
        return Reach(name, max(instances, len(fleet.hosts)))
    return Reach(name, None if fleet.max_nodes is None else max(fleet.max_nodes, instances))


def largest_below(nodes: int, fleets: Iterable[Reach]) -> Reach | None:
    """The largest fleet, where none could ever bring so many nodes together; None: one could, or there is none yet."""
    known = [one for one in fleets if one.most is None or one.most > 0]
    if not known or any(one.most is None or one.most >= nodes for one in known):
        return None
    return max(known, key=lambda one: (one.most or 0, one.name))


_DEFAULTS = {field.name: field.default for field in fields(Fleet)}
_READERS: dict[str, Callable[[Any], Any]] = {
    "spot_policy": SpotPolicy,
    "backends": tuple,
    "hosts": lambda value: tuple((place, blocks) for place, blocks in value),
    "resources": Request.from_json,
}


def _plain(value: Any) -> Any:
    match value:
        case SpotPolicy():
            return value.value
        case tuple():
            return list(value)
        case Request():
            return value.to_json()
    return value


@dataclass(frozen=True, slots=True)
class FleetInstance:
    """An instance that is not TERMINATED yet. `idle_since` None: not IDLE, so it is busy or on its way."""

    id: InstanceId
    idle_since: float | None = None
    reserved: bool = False  # a placement counts on it, though no job has arrived
    leaving: bool = False  # TERMINATING
    cordoned: bool = False
    fits: bool = True  # the fleet as it is now would still make such an instance
    owned: bool = False  # a host of the user's, which nobody could launch again
    place: str = ""  # as which the fleet names it

    @property
    def free(self) -> bool:
        """No job is on it or on its way to it."""
        return not self.reserved and not self.leaving


def site_of(one: Instance) -> Site:
    """Hosts of the user's say nothing of where they are."""
    return (one.backend, one.location) if one.offer else None


def home(instances: Iterable[Instance]) -> Site:
    """Where most of them are; None while there is none."""
    places = Counter(site for one in instances if one.state is not S.TERMINATING and (site := site_of(one)))
    return min(places, key=lambda site: (-places[site], site), default=None)


def seen(
    fleet: Fleet, instances: Sequence[Instance], homes: Container[InstanceId] = frozenset()
) -> list[FleetInstance]:
    """Its instances that are not gone, as they are planned with. One with a volume on it is as good as used: what is in
    the volume would go with it."""
    there = home(instances) if fleet.cluster else None
    return [
        FleetInstance(
            one.id,
            one.entered_at if one.state is S.IDLE else None,
            bool(one.blocks.held) or one.id in homes,
            one.state is S.TERMINATING,
            one.cordoned,
            not misfit(fleet, one, there),
            one.owned,
            one.location,
        )
        for one in instances
    ]


def misfit(fleet: Fleet, one: Instance, there: Site = None) -> str:
    """Why the fleet would not make such an instance now; how it is divided can be changed."""
    if one.owned:
        named = one.backend != SSH or any(place == one.location for place, _ in fleet.hosts)
        return "" if named else "it is not among the hosts of its fleet any more"
    made_of = Offer(one.backend, one.offer, one.location, one.blocks.capacity, one.price, one.spot)
    backends = frozenset(fleet.backends)
    room = FleetRoom(
        FleetId(one.id), None, fleet.spot_policy, fleet.max_price, backends, None, fleet.resources,
        None, fleet.cluster, there,
    )  # fmt: skip
    return room.refuses(made_of)


def redivided(one: Instance, total: int) -> Instance:
    """As it will be once nobody holds a block of it."""
    return evolve(one, {"blocks": Blocks(one.blocks.capacity, total)})


@dataclass(frozen=True, slots=True)
class Create:
    n: int


@dataclass(frozen=True, slots=True)
class Retire:
    instance_id: InstanceId
    reason: str


@dataclass(frozen=True, slots=True)
class Join:
    """A host of somebody's, with what is known of it: where it is."""

    place: str


Action = Create | Retire | Join


def plan_fleet(fleet: Fleet, instances: Iterable[FleetInstance], now: float) -> tuple[Action, ...]:
    """Retirements first: those on their way, then the oldest idle. Planning again on the result gives nothing.

    Instances that no longer fit do not count for the minimum, since they go as soon as no job is on them; all that
    exist count for the maximum, the leaving ones too, since they cost until they are gone. A cordoned one
    is in somebody's hands: it is not retired for being idle. A host of the user's stays until its fleet is deleted.
    """
    there = sorted(instances, key=lambda one: one.id.int)
    staying = [one for one in there if not one.leaving]
    if fleet.deleting:
        going = [one for one in staying if fleet.forced or one.free]
        return tuple(Retire(one.id, "the fleet is being deleted") for one in going)
    retired = [Retire(one.id, "it no longer fits the fleet") for one in staying if not one.fits and one.free]
    fitting = [one for one in staying if one.fits]
    kept = len(fitting)
    in_excess = excess(fleet, staying) - len(retired)
    for one in sorted((one for one in fitting if one.free and not one.owned), key=_turn):
        if kept <= fleet.min_nodes:
            break
        if in_excess > 0:
            retired.append(Retire(one.id, f"the fleet has more than its maximum of {fleet.max_nodes} nodes"))
        elif fleet.idle_duration_s is not None and (at := idle_until(fleet, one)) is not None and now >= at:
            idle_s = now - (one.idle_since or 0.0)
            retired.append(Retire(one.id, f"idle for {idle_s:.0f} s, longer than {fleet.idle_duration_s:.0f} s"))
        else:
            continue
        kept, in_excess = kept - 1, in_excess - 1
    missing = fleet.min_nodes - kept
    if fleet.max_nodes is not None:
        missing = min(missing, fleet.max_nodes - len(there))
    # One that is leaving may come back once it is gone.
    known = {one.place for one in there}
    joining = (Join(place) for place, _ in fleet.hosts if place not in known)
    return (*retired, *((Create(missing),) if missing > 0 else ()), *joining)


def excess(fleet: Fleet, staying: Sequence[FleetInstance]) -> int:
    """How many are there beyond the maximum."""
    return 0 if fleet.max_nodes is None else len(staying) - fleet.max_nodes


def idle_until(fleet: Fleet, one: FleetInstance) -> float | None:
    """When it has been idle for too long; None: never, as it is now."""
    if fleet.idle_duration_s is None or one.idle_since is None or one.cordoned or one.owned or not one.free:
        return None
    return one.idle_since + fleet.idle_duration_s


def next_at(fleet: Fleet, instances: Iterable[FleetInstance]) -> float | None:
    """When time alone may change the plan."""
    return min((at for one in instances if (at := idle_until(fleet, one)) is not None), default=None)


def is_keen(fleet: Fleet, instances: Sequence[FleetInstance], period_s: float) -> bool:
    """Whether somebody has to look as soon as one of its machines falls idle: otherwise the next round is in time."""
    staying = [one for one in instances if not one.leaving]
    brief = fleet.idle_duration_s is not None and fleet.idle_duration_s < period_s
    return fleet.deleting or brief or excess(fleet, staying) > 0 or not all(one.fits for one in staying)


def _turn(one: FleetInstance) -> tuple[float, int]:
    return (one.idle_since or 0.0, one.id.int)
