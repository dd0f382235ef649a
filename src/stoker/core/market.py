"""What could be had for a wish: the offers, cheapest first, and the instances that are there, and what stands against
each. The same rules as the placer's, told one by one."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stoker.core.block import Misfit, need
from stoker.core.gang import InstanceRoom
from stoker.core.ids import FleetId, ProjectId
from stoker.core.offer import FleetRoom, Offer, penalty, rank
from stoker.core.resources import Request


class Wish(NamedTuple):
    """What the jobs of one gang ask for; `whole`: each takes a machine for itself."""

    requests: tuple[Request, ...]
    whole: bool = False
    project_id: ProjectId | None = None
    fleets: frozenset[FleetId] | None = None  # None: any

    def may_use(self, fleet_id: FleetId | None, only: ProjectId | None) -> bool:
        """Whether this fleet, or an instance of it, that serves that project only, is open to it."""
        return (only is None or only == self.project_id) and (self.fleets is None or fleet_id in self.fleets)


class Appraisal(NamedTuple):
    """An offer, by which fleets it would be launched now, and else why it is not."""

    offer: Offer
    penalty: float
    fleets: tuple[FleetId, ...]
    against: str = ""
    next_at: float | None = None
    """When it is tried again, where nothing but its rest stands against it."""


class Candidate(NamedTuple):
    """An instance that is there, and what stands against it now."""

    room: InstanceRoom
    against: str = ""


def appraise(offers: Iterable[Offer], fleets: Sequence[FleetRoom], wish: Wish, now: float) -> list[Appraisal]:
    """In the order in which the placer tries them."""
    mine = [one for one in fleets if wish.may_use(one.fleet_id, one.project_id)]
    return [_appraised(offer, mine, wish, now) for offer in sorted(offers, key=lambda offer: rank(offer, now))]


def _appraised(offer: Offer, fleets: Sequence[FleetRoom], wish: Wish, now: float) -> Appraisal:
    willing = tuple(fleet.fleet_id for fleet in fleets if not fleet.refuses(offer) and fleet.nodes_left != 0)
    against, rests = _misfit(offer, wish), offer.resting_until is not None and offer.resting_until > now
    if not against and offer.available == 0 and not rests:
        against = "none is available now"
    if not against and not willing:
        against = _unwilling(offer, fleets, wish)
    next_at = offer.resting_until if rests and not against else None
    if next_at is not None:
        against = f"rests for {math.ceil(next_at - now)} s, since launches of it failed"
    return Appraisal(offer, penalty(offer.failures, now), () if against else willing, against, next_at)


def _misfit(offer: Offer, wish: Wish) -> str:
    for request in wish.requests:
        n = need(offer.capacity, offer.blocks, request, whole=wish.whole)
        if isinstance(n, Misfit):
            return n.sentence
    return ""


def _unwilling(offer: Offer, fleets: Sequence[FleetRoom], wish: Wish) -> str:
    """Told by the fleet that comes closest to launching it."""
    if not fleets:
        return f"no fleet {'of the project' if wish.fleets is None else 'that it may use'} launches machines"
    if any(not fleet.refuses(offer) for fleet in fleets):
        return "the fleet has as many nodes as it may"
    # One that uses this backend has more to say than one that does not.
    nearest = next((fleet for fleet in fleets if fleet.backends and offer.backend in fleet.backends), fleets[0])
    return nearest.refuses(offer)


def candidates(rooms: Iterable[InstanceRoom], wish: Wish) -> list[Candidate]:
    """Those that are open to it."""
    mine = (room for room in rooms if wish.may_use(room.fleet_id, room.project_id))
    return [Candidate(room, _occupied(room, wish)) for room in mine]


def _occupied(room: InstanceRoom, wish: Wish) -> str:
    if room.barred:
        return room.barred
    found = (room.blocks.fits(request, whole=wish.whole) for request in wish.requests)
    return next((n.sentence for n in found if isinstance(n, Misfit)), "")
