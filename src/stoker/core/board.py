"""The placer's working copy: what is free at this point of the plan, and moves that can be taken back.

Everything that many gangs ask again is computed once: equal machines are one *kind*, equal requests one
number, and how many blocks a request needs on a kind is looked up.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from stoker.core.block import Misfit, need, pick
from stoker.core.gang import Claim, Gang, InstanceRoom
from stoker.core.ids import FleetId, InstanceId, JobId, ProjectId, VolumeId
from stoker.core.offer import FleetRoom, Offer, Site, rank
from stoker.core.resources import Capacity, Request

READY, COMING, NEW = range(3)


@dataclass(slots=True, eq=False)
class Seat:
    """One instance, there or to be launched, while a plan is made."""

    order: int
    tier: int
    kind: int
    capacity: Capacity
    total: int
    free: int
    fleet_id: FleetId | None
    project_id: ProjectId | None = None
    instance_id: InstanceId | None = None
    offer: Offer | None = None
    site: Site = None
    lasting: int = 0
    kept_for: Gang | None = None
    jobs: list[tuple[JobId, int]] = field(default_factory=list)
    free_count: int = 0

    def __post_init__(self) -> None:
        self.free_count = self.free.bit_count()


class Scope(NamedTuple):
    """Where a gang is looked for a place."""

    fleets: frozenset[FleetId | None] | None  # None: all
    project_id: ProjectId | None
    site: Site = None  # where the nodes of a gang are looked for, so that they reach each other; None: anywhere
    only: InstanceId | None = None  # where a volume of it is; then nothing is launched for it

    def admits(self, fleet_id: FleetId | None, only: ProjectId | None) -> bool:
        """Whether an instance of this fleet, which serves that project only, is open to it."""
        return (self.fleets is None or fleet_id in self.fleets) and (only is None or only == self.project_id)

    def takes(self, seat: Seat) -> bool:
        return self.admits(seat.fleet_id, seat.project_id) and self.only in (None, seat.instance_id)


class Launchable(NamedTuple):
    fleet: FleetRoom
    offer: Offer
    stock: int  # the offer's place in `Board.stock`
    kind: int


class Option(NamedTuple):
    """A way to place one job: blocks of a seat, or all that it needs of a machine to be launched."""

    seat: Seat | None
    mask: int
    launch: Launchable | None = None


class Move(NamedTuple):
    seat: Seat
    mask: int
    launch: Launchable | None


class Board:
    def __init__(
        self, instances: Iterable[InstanceRoom], offers: Iterable[Offer], fleets: Iterable[FleetRoom], now: float
    ) -> None:
        self.kinds: dict[tuple[Capacity, int], int] = {}
        self.machines: list[tuple[Capacity, int]] = []
        self._needs: dict[tuple[int, int, bool], int | Misfit] = {}
        self._requests: dict[Request, int] = {}
        self._by_identity: dict[int, tuple[Request, int]] = {}
        self.requests: list[Request] = []
        self.instances = sorted(instances, key=lambda room: room.id.int)
        self.fleets = sorted(fleets, key=lambda fleet: fleet.fleet_id.int)
        self.offers = sorted(offers, key=lambda offer: rank(offer, now))
        self.nodes_left = {fleet.fleet_id: fleet.nodes_left for fleet in self.fleets}
        self.claimed: set[VolumeId] = set()  # volumes that this plan has given away
        self.searched = 0  # moves tried by searches, over the whole plan
        self.stock = [offer.available for offer in self.offers]
        self._served = {room.project_id for room in self.instances} | {fleet.project_id for fleet in self.fleets}
        self.seats = [self._seat(order, room) for order, room in enumerate(self.instances)]
        self.open = [
            seat for seat, room in zip(self.seats, self.instances, strict=True) if not room.barred and seat.free
        ]
        self.refusals = {
            (fleet.fleet_id, place): fleet.refuses(offer)
            for place, offer in enumerate(self.offers)
            for fleet in self.fleets
        }
        self.launchable = [
            Launchable(fleet, divided, place, self.kind(divided.capacity, divided.blocks))
            for place, offer in enumerate(self.offers)
            for fleet in self.fleets
            if not self.refusals[fleet.fleet_id, place]
            for divided in (fleet.divided(offer),)
        ]
        self.clusters = {fleet.fleet_id for fleet in self.fleets if fleet.cluster}
        self.founded: dict[FleetId, tuple[Site, int]] = {}  # clusters whose site this plan chose, with launches there

    @property
    def can_launch(self) -> bool:
        return bool(self.launchable) and any(left != 0 for left in self.nodes_left.values())

    def _seat(self, order: int, room: InstanceRoom) -> Seat:
        blocks = room.blocks
        kind = self.kind(blocks.capacity, blocks.total)
        tier = READY if room.ready else COMING
        return Seat(
            order, tier, kind, blocks.capacity, blocks.total, blocks.free, room.fleet_id, room.project_id, room.id,
            site=room.site, lasting=room.lasting,
        )  # fmt: skip

    def kind(self, capacity: Capacity, total: int) -> int:
        found = self.kinds.setdefault((capacity, total), len(self.machines))
        if found == len(self.machines):
            self.machines.append((capacity, total))
        return found

    def number(self, request: Request) -> int:
        """Most gangs share a few objects, and comparing these costs more than all the rest of a look at a gang."""
        known = self._by_identity.get(id(request))
        if known is not None and known[0] is request:
            return known[1]
        found = self._requests.setdefault(request, len(self.requests))
        if found == len(self.requests):
            self.requests.append(request)
        self._by_identity[id(request)] = (request, found)
        return found

    def need(self, request: int, kind: int, whole: bool) -> int | Misfit:
        key = (request, kind, whole)
        found = self._needs.get(key)
        if found is None:
            found = self._needs[key] = need(*self.machines[kind], self.requests[request], whole=whole)
        return found

    def tenant(self, gang: Gang) -> ProjectId | None:
        """Its project, where some instance serves that one only: all others are equal strangers."""
        return gang.project_id if gang.project_id in self._served else None

    def taken(self, gang: Gang) -> Claim | None:
        """A volume that it wants and that this plan has given to another."""
        return next((claim for claim in gang.claims if claim.id in self.claimed), None)

    def scopes(self, gang: Gang) -> Sequence[Scope]:
        """Where to look: a single job wherever it may go, several at one site of one fleet: they must reach each other.

        Sites where machines are come before those where only new ones could be.
        """
        allowed: frozenset[FleetId | None] | None = None if gang.fleets is None else frozenset(gang.fleets)
        if len(gang.jobs) <= 1:
            return [Scope(allowed, gang.project_id, only=gang.only)]
        fleets: list[FleetId | None] = [fleet.fleet_id for fleet in self.fleets]
        fleets += [seat.fleet_id for seat in self.seats]
        sites: dict[FleetId | None, dict[Site, None]] = {fleet: {} for fleet in fleets}
        for seat in self.seats:
            sites[seat.fleet_id][seat.site] = None
        for launch in self.launchable:
            sites[launch.fleet.fleet_id][launch.offer.site] = None
        return [
            Scope(frozenset([fleet]), gang.project_id, site, gang.only)
            for fleet, places in sites.items()
            if allowed is None or fleet in allowed
            # What says nothing of its site is looked at with every one that is named.
            for site in _named(places)
        ]

    def best(self, request: int, whole: bool, scope: Scope, site: Site) -> Option | None:
        """The seat to prefer: ready, then coming, then new; without GPUs for a job without; then fewest blocks left."""
        shy = self.requests[request].gpu is None
        best_key: tuple[int, bool, int, int] | None = None
        option = None
        for seat in self.open:
            n = self._takes(seat, request, whole, scope, site)
            if not n:
                continue
            key = (seat.tier, shy and bool(seat.capacity.gpus), seat.free_count - n, seat.order)
            if best_key is None or key < best_key:
                mask = pick(seat.capacity, seat.total, seat.free, self.requests[request], n)
                if mask:
                    best_key, option = key, Option(seat, mask)
        return option

    def _takes(self, seat: Seat, request: int, whole: bool, scope: Scope, site: Site) -> int:
        """How many blocks the request would take here, by number alone; 0: it must not or cannot."""
        if seat.kept_for is not None or not scope.takes(seat):
            return 0
        if site is not None and seat.site is not None and seat.site != site:
            return 0
        n = self.need(request, seat.kind, whole)
        return 0 if isinstance(n, Misfit) or seat.free_count < n else n

    def launches(self, request: int, whole: bool, scope: Scope, site: Site) -> Iterator[Option]:
        """New machines that would do, cheapest first; with a `site`, only there."""
        if scope.only is not None:
            return
        for launch in self.launchable:
            if not scope.admits(launch.fleet.fleet_id, launch.fleet.project_id):
                continue
            if self.nodes_left[launch.fleet.fleet_id] == 0 or self.stock[launch.stock] == 0:
                continue
            if site is not None and site != launch.offer.site:
                continue
            if self.founded.get(launch.fleet.fleet_id, (launch.offer.site, 0))[0] != launch.offer.site:
                continue
            n = self.need(request, launch.kind, whole)
            if not isinstance(n, Misfit):
                capacity, total = self.machines[launch.kind]
                yield Option(None, pick(capacity, total, (1 << total) - 1, self.requests[request], n), launch)

    def options(self, request: int, whole: bool, scope: Scope, site: Site) -> Iterator[Option]:
        """Every way to place one job that is different from the others: of equal seats, one."""
        seen = set()
        for seat in list(self.open):
            alike = (seat.kind, seat.free, seat.fleet_id, seat.tier, seat.site)
            n = self._takes(seat, request, whole, scope, site)
            if not n or alike in seen:
                continue
            seen.add(alike)
            mask = pick(seat.capacity, seat.total, seat.free, self.requests[request], n)
            if mask:
                yield Option(seat, mask)
        yield from self.launches(request, whole, scope, site)

    def move(self, job: JobId, option: Option) -> Move:
        seat = option.seat or self._launch(option.launch)
        seat.free ^= option.mask
        seat.free_count = seat.free.bit_count()
        seat.jobs.append((job, option.mask))
        if not seat.free:
            self.open.remove(seat)
        return Move(seat, option.mask, option.launch)

    def undo(self, move: Move) -> None:
        """Takes back the last move, and only that one."""
        seat, mask, launch = move
        if not seat.free:
            self.open.append(seat)
        seat.free ^= mask
        seat.free_count = seat.free.bit_count()
        seat.jobs.pop()
        if launch is not None:
            self.open.remove(seat)
            self.seats.remove(seat)
            self._count(launch, +1)

    def _launch(self, launch: Launchable | None) -> Seat:
        assert launch is not None, "an option has a seat or a launch"
        capacity, total = self.machines[launch.kind]
        free = (1 << total) - 1
        seat = Seat(
            len(self.seats), NEW, launch.kind, capacity, total, free, launch.fleet.fleet_id, launch.fleet.project_id,
            offer=launch.offer, site=launch.offer.site,
        )  # fmt: skip
        self.seats.append(seat)
        self.open.append(seat)
        self._count(launch, -1)
        return seat

    def _count(self, launch: Launchable, change: int) -> None:
        nodes_left, stock = self.nodes_left[launch.fleet.fleet_id], self.stock[launch.stock]
        self.nodes_left[launch.fleet.fleet_id] = None if nodes_left is None else nodes_left + change
        self.stock[launch.stock] = None if stock is None else stock + change
        if launch.fleet.fleet_id in self.clusters and launch.fleet.site is None:
            _, launches = self.founded.get(launch.fleet.fleet_id, (None, 0))
            self.founded[launch.fleet.fleet_id] = (launch.offer.site, launches - change)
            if launches == change:
                del self.founded[launch.fleet.fleet_id]


def _named(places: Iterable[Site]) -> list[Site]:
    return [site for site in places if site is not None] or [None]
