"""The placer: gangs entirely or not at all, in turn, on the machine that suits best."""

import math
import time
from dataclasses import replace
from uuid import UUID

import pytest

from stoker.core.ids import FleetId
from stoker.core.offer import (
    PENALTY_HALF_LIFE_S,
    FleetRoom,
    Offer,
    SpotPolicy,
    any_to_launch,
    in_reach,
    penalty,
    rank,
    rested_at,
)
from stoker.core.placement import plan
from stoker.core.resources import Capacity
from stoker.core.why import WhyCode
from tests.core.placing import NOW, A, B, capacity, gang, job, only, room, where


def test_higher_priority_goes_first_then_the_older_then_the_lower_id() -> None:
    """One machine is free and four runs want it."""
    waiting = [
        gang(1, priority=10, submitted_at=0),
        gang(2, priority=50, submitted_at=9),
        gang(4, priority=50, submitted_at=5),
        gang(3, priority=50, submitted_at=5),
    ]
    made = plan(waiting, [room(1, total=1)], now=NOW)
    assert list(where(made)) == [300]
    assert [(why.run_id.int, why.place, why.of) for why in made.left] == [(4, 1, 3), (2, 2, 3), (1, 3, 3)]


def test_the_instance_with_the_fewest_blocks_left_is_taken() -> None:
    """Small jobs fill the gaps, so that the empty machine stays whole for a large one."""
    made = plan([gang(1, {"cpu": 1})], [room(1), room(2, held=2), room(3, held=3), room(4, held=4)], now=NOW)
    assert where(made) == {100: 3}


def test_a_job_without_gpus_avoids_machines_with_gpus_while_others_fit() -> None:
    """A data job must not sit on the A100 while a CPU machine is free; better there than nowhere, though."""
    with_gpu, without = room(1, gpus=4, held=3), room(2)
    assert where(plan([gang(1)], [with_gpu, without], now=NOW)) == {100: 2}
    assert where(plan([gang(1)], [with_gpu], now=NOW)) == {100: 1}


def test_ready_instances_come_before_those_on_their_way_and_both_before_new_ones() -> None:
    """Nothing is launched that is not needed."""
    offers, fleets = [Offer("aws", "m", "us", capacity())], [FleetRoom(A)]
    ready, coming = room(1), room(2, ready=False, held=3)
    assert where(plan([gang(1)], [ready, coming], offers, fleets, now=NOW)) == {100: 1}
    assert where(plan([gang(1)], [room(1, held=4), coming], offers, fleets, now=NOW)) == {100: 2}
    made = plan([gang(1)], [room(1, held=4)], offers, fleets, now=NOW)
    assert [(new.fleet_id, new.offer.name, new.jobs) for new in made.launches] == [(A, "m", ((job(1), (0,)),))]


def test_two_half_placed_gangs_never_wait_for_each_other() -> None:
    """Two trainings of two nodes, three machines: one gets two, the other holds nothing, a small run uses the third."""
    waiting = [gang(1, {}, {}, whole=True), gang(2, {}, {}, whole=True), gang(3)]
    made = plan(waiting, [room(n) for n in (1, 2, 3)], now=NOW)
    assert where(made) == {100: 1, 101: 2, 300: 3}
    why = only(made)
    assert why.code is WhyCode.BUSY and why.run_id.int == 2


def test_a_job_of_several_nodes_takes_whole_instances() -> None:
    """Its nodes use the host's network."""
    made = plan([gang(1, {"cpu": 1}, {"cpu": 1}, whole=True)], [room(1, held=1), room(2), room(3)], now=NOW)
    assert where(made) == {100: 2, 101: 3} and all(len(one.blocks) == 4 for one in made.assignments)


def test_the_nodes_of_a_gang_stay_in_one_fleet() -> None:
    """A host in the office and a machine in a cloud cannot train together."""
    pair = gang(1, {}, {}, whole=True)
    assert not plan([pair], [room(1), room(2, fleet_id=B)], now=NOW).assignments
    assert where(plan([pair], [room(1), room(2, fleet_id=B), room(3, fleet_id=B)], now=NOW)) == {100: 2, 101: 3}


def test_new_nodes_of_a_gang_are_launched_at_one_site() -> None:
    """Zone a is cheaper but has one machine; both nodes go to zone b."""
    offers = [
        Offer("aws", "m", "a", capacity(), 1.0, available=1),
        Offer("aws", "m", "b", capacity(), 2.0, available=2),
    ]
    made = plan([gang(1, {}, {}, whole=True)], [], offers, [FleetRoom(A)], now=NOW)
    assert [new.offer.location for new in made.launches] == ["b", "b"]


def test_only_the_fleets_a_run_names_are_used() -> None:
    """`fleets: [b]` in the configuration."""
    made = plan([gang(1, fleets=frozenset([B]))], [room(1), room(2, fleet_id=B)], now=NOW)
    assert where(made) == {100: 2}
    assert only(plan([gang(1, fleets=frozenset([B]))], [room(1)], now=NOW)).code is WhyCode.NO_INSTANCE


def test_small_jobs_share_a_machine_that_is_being_launched() -> None:
    """Four runs of one CPU need one new machine of four, not four machines."""
    made = plan(
        [gang(n, {"cpu": 1}) for n in (1, 2, 3, 4)],
        [],
        [Offer("aws", "m", "us", capacity(), blocks=4)],
        [FleetRoom(A)],
        now=NOW,
    )
    (new,) = made.launches
    assert [blocks for _, blocks in new.jobs] == [(0,), (1,), (2,), (3,)]


def test_the_cheapest_offer_that_fits_and_is_allowed_is_launched() -> None:
    """Spot is cheap but this fleet takes none, and the largest is over its price."""
    offers = [
        Offer("aws", "spot", "us", capacity(gpus=1), 0.5, spot=True),
        Offer("aws", "small", "us", capacity(), 0.1),
        Offer("aws", "dear", "us", capacity(gpus=1), 9.0),
        Offer("gcp", "right", "eu", capacity(gpus=1), 3.0),
    ]
    fleet = FleetRoom(A, 1, SpotPolicy.ON_DEMAND, max_price=5.0)
    made = plan([gang(1, {"gpu": 1}), gang(2, {"gpu": 1})], [], offers, [fleet], now=NOW)
    assert [new.offer.name for new in made.launches] == ["right"]
    assert only(made).code is WhyCode.FLEET_LIMIT and "as many nodes as it may" in only(made).sentence
    spot_only = plan([gang(1, {"gpu": 1})], [], offers, [replace(fleet, spot_policy=SpotPolicy.SPOT)], now=NOW)
    assert [new.offer.name for new in spot_only.launches] == ["spot"]


def test_offers_that_no_fleet_uses_are_for_nobody() -> None:
    """Else a server that has only its own host would look at its whole queue in each pass, for machines of nobody."""
    small = Offer("dummy", "small", "here", Capacity(2, 4096), price=1.0)
    here = FleetRoom(FleetId(UUID(int=1)), 2, backends=frozenset({"dummy"}))
    other = replace(here, backends=frozenset({"cloud"}))
    assert in_reach([small], []) == in_reach([small], [other]) == []
    assert in_reach([small], [other, here]) == in_reach([small], [replace(here, backends=None)]) == [small]
    assert any_to_launch([small], [other, here])
    assert not any_to_launch([small], [other])
    assert not any_to_launch([small], [replace(here, nodes_left=0)])
    assert not any_to_launch([small], [replace(here, max_price=0.5)])
    assert not any_to_launch([replace(small, available=0)], [here])


def test_an_offer_whose_launches_fail_rests_longer_each_time_and_is_never_shut_out() -> None:
    """A provider that refuses at once would otherwise be asked again at once, for ever."""
    assert rested_at([], NOW) == 0.0
    assert rested_at([NOW], NOW) == NOW + 1.0
    assert rested_at([NOW, NOW], NOW) == NOW + 2.0
    assert rested_at([NOW] * 1000, NOW) == NOW + 60.0
    assert rested_at([NOW - 86_400.0] * 5 + [NOW], NOW) < NOW + 1.1


def test_an_offer_that_failed_recently_is_ranked_lower_until_it_is_forgotten() -> None:
    """A zone that is out of machines is left alone for a while, not for ever."""
    cheap = Offer("aws", "m", "a", capacity(), 1.0, failures=(NOW, NOW - 1))
    other = Offer("aws", "m", "b", capacity(), 1.5)
    assert [min((cheap, other), key=lambda o: rank(o, at)).location for at in (NOW, NOW + 3600)] == ["b", "a"]
    assert penalty([], NOW) == 0 and penalty([NOW + 5], NOW) == 1
    assert penalty([NOW], NOW + PENALTY_HALF_LIFE_S) == 0.5
    free = Offer("ssh", "h", "x", capacity(), 0.0, failures=(NOW,) * 5000)
    assert math.isfinite(rank(free, NOW)[0]) and rank(free, NOW) > rank(replace(free, failures=()), NOW)


def test_a_large_gang_lets_small_ones_pass_until_it_has_waited_long_enough() -> None:
    """A run that wants the whole machine starves behind small ones; after a while the machine is kept for it."""
    waiting = [gang(1, {"cpu": 4}, submitted_at=0), gang(2, {"cpu": 1}, submitted_at=50)]
    early = plan(waiting, [room(1, held=1)], now=100.0, reserve_after_s=300)
    assert where(early) == {200: 1}
    late = plan(waiting, [room(1, held=1)], now=301.0, reserve_after_s=300)
    assert not late.assignments
    assert [why.code for why in late.left] == [WhyCode.NEXT, WhyCode.KEPT]
    assert late.left[1].reasons[0].sentence == "kept for a run that has waited longer"
    assert where(plan(waiting, [room(1)], now=301.0, reserve_after_s=300)) == {100: 1}


def test_only_the_instance_that_drains_soonest_is_kept() -> None:
    """The other machines work on, and a machine under a service that never ends is not waited for."""
    waiting = [gang(1, {"cpu": 4}, submitted_at=0), gang(2, {"cpu": 1}), gang(3, {"cpu": 1})]
    rooms = [room(1, held=3), room(2, held=2), room(3, held=1, lasting=1)]
    made = plan(waiting, rooms, now=1000.0, reserve_after_s=300)
    assert where(made) == {200: 1, 300: 3}
    assert made.left[0].code is WhyCode.NEXT


def test_mixed_jobs_are_searched_where_best_fit_misses() -> None:
    """Best fit pairs 4 CPUs with 3 and ends two short; 4 + 2 + 2 and 3 + 3 + 2 fill two machines of eight."""
    mixed = gang(1, *({"cpu": cpu} for cpu in (4, 3, 3, 2, 2, 2)))
    made = plan([mixed], [room(1, cpu=8, total=8), room(2, cpu=8, total=8)], now=NOW)
    assert len(made.assignments) == 6


@pytest.mark.parametrize("distinct", [False, True])
def test_five_thousand_gangs_on_two_hundred_full_machines_are_planned_at_once(distinct: bool) -> None:
    """Friday evening: the queue is long and nearly nothing is free. The limit is ten times what it takes."""
    machines = [room(n, cpu=64, total=1024, held=1024 if n > 5 else 1000) for n in range(1, 201)]
    waiting = [gang(n, {"cpu": 1 + n / 1000 if distinct else n % 4 + 1}) for n in range(1, 5001)]
    began = time.perf_counter()
    made = plan(waiting, machines, now=NOW)
    assert time.perf_counter() - began < 5
    assert len(made.assignments) + len(made.left) == 5000
