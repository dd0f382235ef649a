"""Nodes of one gang reach each other, and a cluster stays where it is; fleets decide what is launched in them."""

from dataclasses import replace

import pytest

from stoker.core.offer import LONGEST_REST_S, REST_S, FleetRoom, Offer, rests_until, unsuited
from stoker.core.placement import plan
from stoker.core.resources import parse_request
from stoker.core.why import WhyCode
from tests.core.placing import NOW, A, B, capacity, gang, only, room, where

NORTH, SOUTH = ("aws", "north"), ("aws", "south")
OFFERS = [Offer("aws", "m", "north", capacity(), 1.0), Offer("aws", "m", "south", capacity(), 2.0)]


def test_nodes_of_a_gang_are_all_at_one_site() -> None:
    """Three machines are free, two of them at the same place."""
    rooms = [room(1, site=NORTH), room(2, site=SOUTH), room(3, site=SOUTH)]
    pair = gang(1, {}, {}, whole=True)
    assert sorted(where(plan([pair], rooms, now=NOW)).values()) == [2, 3]
    assert only(plan([pair], rooms[:2], now=NOW)).code is WhyCode.BUSY


def test_hosts_that_say_nothing_of_where_they_are_reach_each_other() -> None:
    rooms = [room(1), room(2, site=NORTH)]
    assert sorted(where(plan([gang(1, {}, {}, whole=True)], rooms, now=NOW)).values()) == [1, 2]


def test_a_gang_is_completed_at_the_site_where_its_machines_are() -> None:
    """Also where that is not the cheapest: two machines there, and a third one beside them."""
    made = plan([gang(1, {}, {}, whole=True)], [room(1, site=SOUTH)], OFFERS, [FleetRoom(A)], now=NOW)
    assert [new.offer.location for new in made.launches] == ["south"]


def test_a_cluster_grows_where_it_is() -> None:
    fleet = FleetRoom(A, cluster=True, site=SOUTH)
    made = plan([gang(1), gang(2)], [], OFFERS, [fleet], now=NOW)
    assert [new.offer.location for new in made.launches] == ["south"] * 2
    elsewhere = plan([gang(1)], [], OFFERS[:1], [fleet], now=NOW)
    assert "the fleet is a cluster at aws/south" in only(elsewhere).sentence


def test_the_first_launch_of_a_plan_founds_a_cluster() -> None:
    """The cheap place has one machine left; the second job waits rather than tearing the cluster apart."""
    offers = [replace(OFFERS[0], available=1), OFFERS[1]]
    fleet = FleetRoom(A, cluster=True)
    made = plan([gang(1), gang(2)], [], offers, [fleet], now=NOW)
    assert [new.offer.location for new in made.launches] == ["north"]
    pair = plan([gang(1, {}, {}, whole=True)], [], offers, [fleet], now=NOW)
    assert [new.offer.location for new in pair.launches] == ["south", "south"], (
        "what was tried and taken back founds nothing"
    )
    anywhere = plan([gang(1), gang(2)], [], offers, [FleetRoom(A)], now=NOW)
    assert [new.offer.location for new in anywhere.launches] == ["north", "south"]


def test_a_new_machine_is_divided_as_its_fleet_says() -> None:
    made = plan([gang(n, {"cpu": 1}) for n in (1, 2, 3, 4)], [], OFFERS, [FleetRoom(A, blocks=4)], now=NOW)
    assert [(new.offer.blocks, len(new.jobs)) for new in made.launches] == [(4, 4)]


def test_a_fleet_is_made_of_the_machines_that_it_wants() -> None:
    """Unlike for a job, too large is as wrong as too small."""
    fleet = FleetRoom(A, resources=parse_request({"cpu": "8..16"}))
    assert "it has 4 CPUs, not 8..16" in only(plan([gang(1)], [], OFFERS, [fleet], now=NOW)).sentence
    assert unsuited(capacity(32), fleet.resources) == "it has 32 CPUs, not 8..16"
    assert unsuited(capacity(8), fleet.resources) == ""
    assert unsuited(capacity(8, gpus=8), parse_request({"gpu": "A100:2"})) == "it has 8 GPUs, not 2 A100"
    assert unsuited(capacity(8, gpus=2), parse_request({"gpu": 0.5})) == ""


def test_machines_whose_gpus_cannot_be_divided_so_are_not_launched() -> None:
    offers = [Offer("aws", "p", "north", capacity(8, gpus=3))]
    why = only(plan([gang(1, {"gpu": "1.."})], [], offers, [FleetRoom(A, blocks=2)], now=NOW))
    assert "3 GPUs cannot be divided evenly into 2 blocks" in why.sentence


def test_a_gang_that_may_use_only_fleets_that_are_gone_is_told_so() -> None:
    waiting = gang(1, fleets=frozenset(), absent=("gpus",))
    why = only(plan([waiting], [room(1)], now=NOW))
    assert (why.code, why.sentence) == (
        WhyCode.NO_FLEET, "fleet gpus is not there any more, and it may use no other",
    )  # fmt: skip
    other = gang(2, fleets=frozenset([A]), absent=("gpus", "tpus"))
    why = only(plan([other], [room(1, held=4)], now=NOW))
    assert why.sentence.endswith("; fleets gpus and tpus are not there any more")
    assert where(plan([other], [room(1), room(2, fleet_id=B)], now=NOW)) == {200: 1}


@pytest.mark.parametrize(
    ("failures", "until"),
    [((), 0.0), ((100.0,), 100 + REST_S), ((100.0, 100.0), 100 + 2 * REST_S), ((0.0, 6000.0), 6000 + REST_S * 1.0007)],
)
def test_each_failure_makes_an_offer_rest_for_longer(failures: tuple[float, ...], until: float) -> None:
    assert rests_until(failures) == pytest.approx(until, abs=0.1)
    assert rests_until((5.0,) * 50) == 5 + LONGEST_REST_S
