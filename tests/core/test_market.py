"""What could be had for a wish, and what stands against the rest."""

from uuid import uuid4

from stoker.core.ids import ProjectId
from stoker.core.market import Wish, appraise, candidates
from stoker.core.offer import FleetRoom, Offer, SpotPolicy
from stoker.core.resources import parse_request
from tests.core.placing import NOW, A, B, capacity, room

MINE, OTHERS = ProjectId(uuid4()), ProjectId(uuid4())
POOL = FleetRoom(A, backends=frozenset(["aws"]))


def offer(name: str, cpu: float = 4, price: float = 1.0, **more: object) -> Offer:
    return Offer("aws", name, "eu", capacity(cpu), price, **more)  # type: ignore[arg-type]


def said(offers: list[Offer], *fleets: FleetRoom, cpu: int = 1, whole: bool = False) -> dict[str, str]:
    wish = Wish((parse_request({"cpu": cpu}),), whole, MINE)
    return {one.offer.name: one.against for one in appraise(offers, fleets, wish, NOW)}


def test_the_cheapest_comes_first_and_one_that_failed_lately_falls_behind() -> None:
    offers = [offer("dear", price=3.0), offer("cheap", price=1.0), offer("shaky", price=0.9, failures=(NOW, NOW))]
    found = appraise(offers, [POOL], Wish((), project_id=MINE), NOW)
    assert [one.offer.name for one in found] == ["cheap", "dear", "shaky"]
    assert [round(one.penalty, 3) for one in found] == [0, 0, 2]
    assert all(one.fleets == (A,) and not one.against for one in found)


def test_each_offer_that_is_not_launched_says_why() -> None:
    spot, gone, small = offer("spot", spot=True), offer("gone", available=0), offer("small", cpu=1)
    firm = FleetRoom(A, spot_policy=SpotPolicy.ON_DEMAND, max_price=2.0, backends=frozenset(["aws"]))
    told = said([spot, gone, small, offer("dear", price=3.0), offer("good")], firm, cpu=2)
    assert told == {
        "good": "",
        "spot": "the fleet takes no spot machines",
        "gone": "none is available now",
        "small": "needs 2 CPUs, has 1",
        "dear": "the fleet's max_price is 2, it costs 3",
    }


def test_a_fleet_without_room_and_fleets_of_others_launch_nothing() -> None:
    full = FleetRoom(A, nodes_left=0, backends=frozenset(["aws"]))
    assert said([offer("one")], full) == {"one": "the fleet has as many nodes as it may"}
    theirs = FleetRoom(B, backends=frozenset(["aws"]), project_id=OTHERS)
    assert said([offer("one")], theirs) == {"one": "no fleet of the project launches machines"}
    other = FleetRoom(B, backends=frozenset(["gcp"]))
    assert said([offer("one")], other) == {"one": "the fleet does not use aws"}
    assert said([offer("one")], other, POOL) == {"one": ""}


def test_only_fleets_that_it_may_use_have_a_say() -> None:
    """`fleets: [b]`: what another fleet would launch, or has there, is no use to it."""
    other = FleetRoom(B, backends=frozenset(["aws"]), max_price=0.5)
    mine = Wish((parse_request({"cpu": 1}),), project_id=MINE, fleets=frozenset([B]))
    (one,) = appraise([offer("one")], [POOL, other], mine, NOW)
    assert (one.fleets, one.against) == ((), "the fleet's max_price is 0.5, it costs 1")
    (none,) = appraise([offer("one")], [POOL], mine, NOW)
    assert none.against == "no fleet that it may use launches machines"
    rooms = [room(1, fleet_id=A), room(2, fleet_id=B)]
    assert [found.room.id for found in candidates(rooms, mine)] == [rooms[1].id]


def test_an_offer_that_rests_says_until_when_if_nothing_else_stands_against_it() -> None:
    """Its launch was refused a moment ago; when it is tried again is known."""
    resting = offer("one", available=0, resting_until=NOW + 8)
    wish = Wish((parse_request({"cpu": 2}),), project_id=MINE)
    (one,) = appraise([resting], [POOL], wish, NOW)
    assert (one.against, one.next_at) == ("rests for 8 s, since launches of it failed", NOW + 8)
    (small,) = appraise([resting], [POOL], wish._replace(requests=(parse_request({"cpu": 64}),)), NOW)
    assert small.next_at is None
    (full,) = appraise([resting], [FleetRoom(A, nodes_left=0, backends=frozenset(["aws"]))], wish, NOW)
    assert (full.against, full.next_at) == ("the fleet has as many nodes as it may", None)


def test_instances_say_what_stands_against_them_now() -> None:
    rooms = [room(1), room(2, held=4), room(3, barred="cordoned"), room(4, cpu=1, total=1), room(5, project_id=OTHERS)]
    found = candidates(rooms, Wish((parse_request({"cpu": 2}),), False, MINE))
    assert [(one.room.name, one.against) for one in found] == [
        ("local-1", ""),
        ("local-2", "needs 2 CPUs, has 0 of 4 CPUs free"),
        ("local-3", "cordoned"),
        ("local-4", "needs 2 CPUs, has 1"),
    ]
    whole = candidates([room(1, held=1)], Wish((parse_request({}),), True, MINE))
    assert whole[0].against
