"""Machines that could be had: what a backend offers, what a fleet allows, and which offer comes first.

An offer that failed or was preempted a moment ago is likely to do so again. Each such failure doubles the price
that the offer is ranked by, and is forgotten by half every ten minutes; it is never shut out, since
it may be the only one.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from stoker.core.ids import FleetId
from stoker.core.resources import Capacity

PENALTY_HALF_LIFE_S = 600.0
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

    def refuses(self, offer: Offer) -> str:
        """Why its policy forbids the offer, or nothing; how many nodes are left is another question."""
        if self.backends is not None and offer.backend not in self.backends:
            return f"the fleet does not use {offer.backend}"
        if self.spot_policy is SpotPolicy.ON_DEMAND and offer.spot:
            return "the fleet takes no spot machines"
        if self.spot_policy is SpotPolicy.SPOT and not offer.spot:
            return "the fleet takes only spot machines"
        if self.max_price is not None and offer.price > self.max_price:
            return f"the fleet's max_price is {self.max_price:g}, it costs {offer.price:g}"
        return ""


def penalty(failures: Iterable[float], now: float) -> float:
    """One for each failure just now, half of that after each half-life; a clock that was ahead counts as now."""
    return math.fsum(math.exp2(-max(0.0, now - failed_at) / PENALTY_HALF_LIFE_S) for failed_at in failures)


def rank(offer: Offer, now: float) -> tuple[float, str, str, str, bool]:
    """Smallest first. The names make the order of equals the same everywhere."""
    # A hundred failures are as good as a thousand, and still a number.
    doublings = min(100.0, penalty(offer.failures, now))
    return ((offer.price + LEAST_PRICE) * math.exp2(doublings), offer.backend, offer.location, offer.name, offer.spot)
