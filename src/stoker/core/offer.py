"""Machines that could be had: what a backend offers, what a fleet allows, and which offer comes first.

An offer that failed or was preempted a moment ago is likely to do so again. Each such failure doubles the price
that the offer is ranked by, and is forgotten by half every ten minutes; it is never shut out, since
it may be the only one.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import Enum

from stoker.core import phrase
from stoker.core.block import divide
from stoker.core.errors import UserError
from stoker.core.ids import FleetId, ProjectId
from stoker.core.quantity import Range, format_number, format_range, format_size
from stoker.core.resources import Capacity, Request

PENALTY_HALF_LIFE_S = 600.0
# The placer's pause before an offer that refused is tried again, and the rest of a fleet that only wants to be larger.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
REST_S = 15.0
LONGEST_REST_S = 600.0
ANYTHING = Request()
Site = tuple[str, str] | None  # backend and location; None: not said, so that it reaches every other
# What is free of charge must be able to fall behind too.
LEAST_PRICE = 0.001


class SpotPolicy(Enum):
    SPOT = "spot"
    ON_DEMAND = "on-demand"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of machine at one place; `price` an hour. `available` None: the backend does not say."""

    backend: str
    name: str
    location: str
    capacity: Capacity
    price: float = 0.0
    spot: bool = False
    available: int | None = None
    blocks: int = 1
    shim: bool = True  # False: the machine is a container with a runner in it
    failures: tuple[float, ...] = ()  # when launches of it failed or machines of it were preempted
    resting_until: float | None = None  # it could be had, but is not asked for before then: `available` is 0

    @property
    def site(self) -> Site:
        return self.backend, self.location

    def __str__(self) -> str:
        return f"{self.name} at {self.backend}/{self.location}{' (spot)' if self.spot else ''}"


@dataclass(frozen=True, slots=True)
class FleetRoom:
    """What a fleet still allows to launch. `nodes_left` None: without end. `backends` None: any."""

    fleet_id: FleetId
    nodes_left: int | None = None
    spot_policy: SpotPolicy = SpotPolicy.AUTO
    max_price: float | None = None
    backends: frozenset[str] | None = None
    project_id: ProjectId | None = None  # the only one that it serves; None: any
    resources: Request = ANYTHING  # which machines it may be made of
    blocks: int | str | None = None  # how its machines are divided; None: as they are offered
    cluster: bool = False  # all its machines are at one site
    site: Site = None  # where they are, once there is one

    def refuses(self, offer: Offer) -> str:
        """Why its policy forbids the offer, or nothing; how many nodes are left is another question."""
        if self.cluster and self.site is not None and offer.site != self.site:
            return f"the fleet is a cluster at {'/'.join(self.site)}"
        if self.backends is not None and offer.backend not in self.backends:
            return f"the fleet does not use {offer.backend}"
        if self.spot_policy is SpotPolicy.ON_DEMAND and offer.spot:
            return "the fleet takes no spot machines"
        if self.spot_policy is SpotPolicy.SPOT and not offer.spot:
            return "the fleet takes only spot machines"
        if self.max_price is not None and offer.price > self.max_price:
            return f"the fleet's max_price is {self.max_price:g}, it costs {offer.price:g}"
        if unlike := unsuited(offer.capacity, self.resources):
            return f"the fleet is made of other machines: {unlike}"
        try:
            self.divided(offer)
        except UserError as error:
            return error.sentence.rstrip(".")
        return ""

    def divided(self, offer: Offer) -> Offer:
        """As it would be launched in this fleet."""
        return offer if self.blocks is None else replace(offer, blocks=divide(offer.capacity, self.blocks))


def unsuited(capacity: Capacity, wanted: Request) -> str:
    """Why a machine is not of the kind that is wanted, or nothing. Unlike for a job, more than the most is too much."""
    amounts = (
        ("cpu", wanted.cpu, capacity.cpu),
        ("memory", wanted.memory_mb, capacity.memory_mb),
        ("disk", wanted.disk_mb, capacity.disk_mb),
        *((name, Range(much), capacity.named.get(name, 0)) for name, much in wanted.named.items()),
    )
    for code, asked, has in amounts:
        if not _within(asked, has):
            form = format_size if code in phrase.SIZES else format_number
            return f"it has {phrase.amount(code, has)}, not {format_range(asked, form)}"
    if (gpu := wanted.gpu) is not None:
        good = sum(gpu.accepts(one) for one in capacity.gpus)
        if good < 1 if gpu.fraction else not _within(gpu.count, good):
            return f"it has {phrase.amount('gpu', len(capacity.gpus))}, not {phrase.gpus(gpu)}"
    return ""


def _within(asked: Range, has: float) -> bool:
    return asked.lo <= has and (asked.hi is None or has <= asked.hi)


def rests_until(failures: Iterable[float]) -> float:
    """Until when a fleet that only wants to be larger does not ask for the offer again: longer with each failure.

    A job that waits is in more of a hurry, and there may be no other offer: the placer only ranks it behind.
    """
    times = sorted(failures)
    if not times:
        return 0.0
    doublings = min(20.0, penalty(times, times[-1]) - 1)
    return times[-1] + min(LONGEST_REST_S, REST_S * math.exp2(doublings))


def in_reach(offers: Iterable[Offer], fleets: Collection[FleetRoom]) -> list[Offer]:
    """Those at backends that a fleet uses: the others are for nobody, and nobody wants to hear why."""
    return [one for one in offers if any(room.backends is None or one.backend in room.backends for room in fleets)]


def any_to_launch(offers: Iterable[Offer], fleets: Collection[FleetRoom]) -> bool:
    """Whether any machine at all could be launched now."""
    open_ = [room for room in fleets if room.nodes_left != 0]
    return any(one.available != 0 and not room.refuses(one) for one in offers for room in open_)


def penalty(failures: Iterable[float], now: float) -> float:
    """One for each failure just now, half of that after each half-life; a clock that was ahead counts as now."""
    return math.fsum(math.exp2(-max(0.0, now - failed_at) / PENALTY_HALF_LIFE_S) for failed_at in failures)


def rested_at(failures: Iterable[float], now: float) -> float:
    """When an offer may be tried again whose launches failed at these moments: sooner after one, later after many.

    Without it a provider that refuses at once would be asked again at once, without end.
    """
    failed = sorted(failures)
    if not failed:
        return 0.0
    rest_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * math.exp2(min(100.0, penalty(failed, now)) - 1))
    return failed[-1] + rest_s


def rank(offer: Offer, now: float) -> tuple[float, str, str, str, bool]:
    """Smallest first. The names make the order of equals the same everywhere."""
    # A hundred failures are as good as a thousand, and still a number.
    doublings = min(100.0, penalty(offer.failures, now))
    return ((offer.price + LEAST_PRICE) * math.exp2(doublings), offer.backend, offer.location, offer.name, offer.spot)
