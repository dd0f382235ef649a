"""Whoever waits is told why, in words and numbers that help."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from stoker.core.block import Blocks
from stoker.core.gang import InstanceRoom, OnNoCapacity
from stoker.core.offer import FleetRoom, Offer, SpotPolicy
from stoker.core.placement import DETAILED, plan
from stoker.core.why import WhyCode
from tests.core.placing import NOW, A, capacity, gang, only, room, where


def with_engine(place: InstanceRoom) -> InstanceRoom:
    capacity = replace(place.blocks.capacity, docker=True)
    return replace(place, blocks=Blocks(capacity, place.blocks.total, place.blocks.held))


def test_a_container_is_placed_where_an_engine_is() -> None:
    """Of two equal hosts one has Docker; a process may go to either."""
    rooms = [room(1), with_engine(room(2))]
    made = plan([gang(1, {"container": True}), gang(2, {"container": True, "cpu": 4})], rooms, now=NOW)
    assert where(made) == {100: 2}
    why = only(made)
    assert "free" in why.sentence, "the second waits for room on the one that has it"
    assert [one.sentence for one in why.reasons if one.instance_id.int == 1] in ([], ["has no Docker engine"])


def test_where_no_engine_is_that_is_said_by_name() -> None:
    for rooms, says in (
        ([room(1)], "it runs in a container, and local-1 has no Docker engine"),
        ([room(1), room(2)], "local-1 has no Docker engine, nor has local-2"),
        ([room(n) for n in range(1, 5)], "local-1 has no Docker engine, nor have 3 others"),
    ):
        why = only(plan([gang(1, {"container": True})], rooms, now=NOW))
        assert (why.code, why.limit) == (WhyCode.IMPOSSIBLE, "docker")
        assert why.sentence.endswith(says)
    offers, fleets = [Offer("aws", "m", "us", capacity())], [FleetRoom(A)]
    why = only(plan([gang(1, {"container": True})], [], offers, fleets, now=NOW))
    assert "no machine that could be launched has a Docker engine" in why.sentence


def test_who_wants_all_rights_is_told_that_no_fleet_gives_them() -> None:
    why = only(plan([gang(1, fleets=frozenset(), refused="no fleet allows it")], [room(1)], now=NOW))
    assert (why.code, why.sentence) == (WhyCode.NO_FLEET, "no fleet allows it")


@pytest.mark.parametrize("barred", ["cordoned", "unreachable since 12:00", "unhealthy: XID 79"])
def test_nothing_is_placed_on_an_instance_that_is_barred(barred: str) -> None:
    """An operator cordons a host with a failing card."""
    why = only(plan([gang(1)], [room(1, barred=barred)], now=NOW))
    assert why.code is WhyCode.BARRED and barred in why.sentence and why.reasons[0].sentence == barred


@pytest.mark.parametrize(
    ("fleet", "available", "says"),
    [
        (FleetRoom(A, 0), 1, "as many nodes as it may"),
        (FleetRoom(A, max_price=0.5), 1, "max_price is 0.5, it costs 1"),
        (FleetRoom(A, spot_policy=SpotPolicy.SPOT), 1, "only spot machines"),
        (FleetRoom(A, backends=frozenset(["gcp"])), 1, "does not use aws"),
        (FleetRoom(A), 0, "m at aws/us is not available now"),
    ],
)
def test_what_stands_against_a_launch_is_named(fleet: FleetRoom, available: int, says: str) -> None:
    """The machine exists in the catalogue: the person wants to know which setting keeps it away."""
    why = only(plan([gang(1)], [], [Offer("aws", "m", "us", capacity(), 1.0, available=available)], [fleet], now=NOW))
    assert says in why.sentence and why.code in (WhyCode.FLEET_LIMIT, WhyCode.NO_OFFER)


def test_an_impossible_gang_is_told_which_limit_is_in_its_way() -> None:
    """Sixteen GPUs in one machine, where the largest has four and the largest on offer eight."""
    offers, fleets = [Offer("aws", "p4d", "us", capacity(96, gpus=8), 30.0)], [FleetRoom(A)]
    why = only(plan([gang(1, {"gpu": 16})], [room(1, gpus=4)], offers, fleets, now=NOW))
    assert (why.code, why.limit, why.needs, why.has) == (WhyCode.IMPOSSIBLE, "gpu", 16, 8)
    assert "the closest needs 16 GPUs, has 8" in why.sentence


def test_more_nodes_than_a_fleet_may_ever_have_is_impossible() -> None:
    """Four nodes; the fleet has one machine and may have one more."""
    offers, fleets = [Offer("aws", "m", "us", capacity())], [FleetRoom(A, 1)]
    why = only(plan([gang(1, *[{}] * 4, whole=True)], [room(1)], offers, fleets, now=NOW))
    assert (why.code, why.limit, why.needs, why.has) == (WhyCode.IMPOSSIBLE, "nodes", 4, 2)


def test_one_impossible_job_makes_its_gang_impossible() -> None:
    """The worker fits, the parameter server wants a licence that nobody has."""
    why = only(plan([gang(1, {"cpu": 4}, {"named": {"license": 1}})], [room(1), room(2)], now=NOW))
    assert (why.code, why.limit) == (WhyCode.IMPOSSIBLE, "license")


def test_a_gang_that_may_not_queue_fails_now() -> None:
    """`on_no_capacity: fail` in a nightly test: better a red mark now than a queue until morning."""
    full, fail = [room(1, held=4)], OnNoCapacity.FAIL
    assert only(plan([gang(1, on_no_capacity=fail)], full, now=NOW)).fail_now
    assert not only(plan([gang(1)], full, now=NOW)).fail_now
    not_ready = only(plan([gang(1, on_no_capacity=fail, ready=False)], [room(1)], now=NOW))
    assert not_ready.code is WhyCode.NOT_READY and not not_ready.fail_now


def test_reasons_are_given_for_the_first_instances_and_the_rest_is_counted() -> None:
    """A thousand hosts do not make a thousand lines."""
    why = only(plan([gang(1, {"cpu": 2})], [room(n, held=3) for n in range(1, 26)], now=NOW))
    assert len(why.reasons) == 20 and why.more == 5
    assert why.reasons[0] == (UUID(int=1), "local-1", "needs 2 CPUs, has 1 of 4 CPUs free")
    assert (why.needs, why.has) == (2, 1)


@pytest.mark.parametrize(
    ("request_", "held", "says"),
    [
        (
            {"cpu": 1, "memory": "4GB"},
            4,
            "needs 1 CPU and 4 GB of memory, local-1 has 0 of 4 CPUs and 0 of 16 GB of memory free",
        ),
        ({"cpu": 2.5}, 3, "needs 2.5 CPUs, local-1 has 1 of 4 CPUs free"),
        ({"cpu": 0.5, "memory": "9GB"}, 2, "needs 0.5 CPUs and 9 GB of memory, local-1 has 8 of 16 GB of memory free"),
        ({}, 4, "needs a share of an instance, local-1 has 0 of 4 CPUs free"),
    ],
)
def test_what_is_in_use_is_told_in_cpus_and_memory(request_: dict[str, Any], held: int, says: str) -> None:
    """Nobody but the placer thinks in blocks; and of what is asked for, only what is short is counted."""
    why = only(plan([gang(1, request_)], [room(1, held=held)], now=NOW))
    assert (why.code, why.sentence) == (WhyCode.BUSY, says)


def test_of_several_instances_the_closest_is_named() -> None:
    """Where to look first; the others are in the list of reasons."""
    why = only(plan([gang(1, {"cpu": 3})], [room(1, held=4), room(2, held=2)], now=NOW))
    assert why.sentence == "needs 3 CPUs, the closest of 2 instances, local-2, has 2 of 4 CPUs free"
    gpu = only(plan([gang(1, {"gpu": 2})], [room(1, gpus=4, held=3)], now=NOW))
    assert gpu.sentence == "needs 2 GPUs, local-1 has 1 of 4 GPUs free"


def test_one_is_not_told_as_many() -> None:
    """`1 instances` is what a machine says."""
    one = only(plan([gang(1)], [room(1, barred="cordoned")], now=NOW))
    two = only(plan([gang(1)], [room(1, barred="cordoned"), room(2, barred="unreachable")], now=NOW))
    assert one.sentence == "local-1 is cordoned"
    assert two.sentence == "fits 2 instances, none of which may be used now: local-1 is cordoned"
    several = only(plan([gang(1, {"cpu": 3}, {"cpu": 3})], [room(1), room(2, held=4)], now=NOW))
    assert several.sentence == "its 2 jobs need room at once, 1 of 2 instances has some"


def test_a_plan_can_be_printed() -> None:
    """`--dry-run` and `stoker why` show it before anything happens."""
    offers = [Offer("aws", "m", "us", capacity(2))]
    waiting = [gang(1, {"cpu": 4}), gang(2, {"cpu": 2}), gang(3, {"cpu": 64})]
    lines = list(plan(waiting, [room(1)], offers, [FleetRoom(A)], now=NOW).lines())
    assert "4 blocks" in lines[0] and lines[1].startswith("launch m at aws/us") and "1 of 1 waiting" in lines[2]


def test_reasons_are_for_the_head_of_the_queue_and_for_whom_somebody_asks() -> None:
    """A queue of thousands is planned every second, and read by few."""
    waiting = [gang(n) for n in range(1, DETAILED + 3)]
    asked = waiting[-1].run_id
    left = plan(waiting, [room(1, held=4)], now=NOW, detail={asked}).left
    assert [bool(why.reasons) for why in left] == [True] * DETAILED + [False, True]
    assert len({why.sentence for why in left}) == 1
