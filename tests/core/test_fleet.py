"""A fleet keeps its minimum, respects its maximum, and does not pay for what nobody uses."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.block import Blocks
from stoker.core.errors import UserError
from stoker.core.fleet import (
    Action,
    Create,
    Fleet,
    FleetInstance,
    Join,
    Reach,
    Retire,
    home,
    is_keen,
    largest_below,
    misfit,
    next_at,
    plan_fleet,
    reach_of,
)
from stoker.core.gpu import Gpu
from stoker.core.ids import InstanceId
from stoker.core.instance_facts import Instance, S
from stoker.core.offer import SpotPolicy
from stoker.core.resources import Capacity, parse_request

NOW = 10_000.0


def instance(n: int, idle_s: float | None = None, **more: Any) -> FleetInstance:
    return FleetInstance(InstanceId(UUID(int=n)), None if idle_s is None else NOW - idle_s, **more)


def retired(actions: tuple[Action, ...]) -> list[int]:
    return [action.instance_id.int for action in actions if isinstance(action, Retire)]


def test_below_the_minimum_machines_are_created() -> None:
    """A fleet of two to four was applied, or a machine was lost."""
    fleet = Fleet(min_nodes=2, max_nodes=4)
    assert plan_fleet(fleet, [], NOW) == (Create(2),)
    assert plan_fleet(fleet, [instance(1)], NOW) == (Create(1),)
    assert plan_fleet(fleet, [instance(1), instance(2, leaving=True)], NOW) == (Create(1),)
    assert plan_fleet(fleet, [instance(1), instance(2)], NOW) == ()


def test_what_is_still_leaving_counts_for_the_maximum() -> None:
    """It costs until the provider says that it is gone."""
    fleet = Fleet(min_nodes=1, max_nodes=1)
    assert plan_fleet(fleet, [instance(1, leaving=True)], NOW) == ()


def test_idle_machines_above_the_minimum_are_retired_oldest_idle_first() -> None:
    """After a busy day, three of four machines idle; one is the minimum."""
    seen = [instance(1, 400), instance(2, 900), instance(3), instance(4, 100)]
    assert retired(plan_fleet(Fleet(1, 4, 300), seen, NOW)) == [2, 1]
    assert retired(plan_fleet(Fleet(3, 4, 300), seen, NOW)) == [2]
    assert plan_fleet(Fleet(4, 4, 300), seen, NOW) == ()
    assert plan_fleet(Fleet(0, 4, None), seen, NOW) == ()


def test_reserved_and_cordoned_machines_are_not_retired_for_being_idle() -> None:
    """A job is on its way to one, and somebody is looking at the other."""
    seen = [instance(1, 900, reserved=True), instance(2, 900, cordoned=True)]
    assert plan_fleet(Fleet(0, 4, 300), seen, NOW) == ()


def test_a_machine_that_no_longer_fits_goes_once_it_is_idle_and_is_replaced() -> None:
    """The fleet's machine type was changed: the busy one may finish its job."""
    seen = [instance(1, 1, fits=False), instance(2, fits=False, reserved=True)]
    actions = plan_fleet(Fleet(2, 4), seen, NOW)
    assert actions == (Retire(InstanceId(UUID(int=1)), "it no longer fits the fleet"), Create(2))


def test_a_lowered_maximum_retires_idle_machines_at_once() -> None:
    """`nodes: 0..4` became `0..1`: busy ones are left alone."""
    seen = [instance(1, reserved=True), instance(2, 1), instance(3, 2)]
    assert retired(plan_fleet(Fleet(0, 1, 300), seen, NOW)) == [3, 2]


def test_machines_on_their_way_are_the_first_of_too_many() -> None:
    """`nodes: 3` became 1 while two were still being launched: the one that is up is worth more than they are."""
    seen = [instance(1, 5), instance(2), instance(3)]
    assert retired(plan_fleet(Fleet(1, 1, 300), seen, NOW)) == [2, 3]
    assert retired(plan_fleet(Fleet(0, 1, 300), [*seen[:2], instance(3, reserved=True)], NOW)) == [2, 1]


def test_a_host_of_the_users_stays() -> None:
    """Nobody could launch it again; only with its fleet does it go."""
    seen = [instance(1, 9000, owned=True), instance(2, 9000, owned=True)]
    assert plan_fleet(Fleet(0, 1, 300), seen, NOW) == ()
    assert next_at(Fleet(0, 1, 300), seen) is None
    assert retired(plan_fleet(Fleet(0, 1, deleting=True), seen, NOW)) == [1, 2]


OFFICE = Fleet(idle_duration_s=None, blocks=1, hosts=(("one", None), ("two", "auto")))


def test_hosts_that_are_named_join_and_those_that_are_not_go_when_no_job_is_on_them() -> None:
    """One that still leaves comes back when it is gone: two agents on one host would be one too many."""
    assert plan_fleet(OFFICE, [], NOW) == (Join("one"), Join("two"))
    there = [instance(1, 9.0, owned=True, place="one"), instance(2, owned=True, place="two", leaving=True)]
    assert plan_fleet(OFFICE, there, NOW) == ()
    other = [instance(3, 9.0, owned=True, place="three", fits=False), instance(4, 9.0, owned=True, place="two")]
    assert plan_fleet(OFFICE, other, NOW) == (
        Retire(InstanceId(UUID(int=3)), "it no longer fits the fleet"), Join("one"),
    )  # fmt: skip
    busy = [instance(3, owned=True, place="three", fits=False, reserved=True), *other[1:], *there[:1]]
    assert plan_fleet(OFFICE, busy, NOW) == ()
    assert plan_fleet(replace(OFFICE, deleting=True), there[:1], NOW) == (
        Retire(InstanceId(UUID(int=1)), "the fleet is being deleted"),
    )


def test_a_host_is_divided_in_its_own_way_once_it_is_known_what_it_has() -> None:
    known = Instance(InstanceId(UUID(int=1)), None, "ssh", Blocks(Capacity(2.0, 1024), 1), owned=True, location="two")
    assert OFFICE.divides(known) == 32
    assert OFFICE.divides(replace(known, location="one")) is None
    assert OFFICE.divides(replace(known, blocks=Blocks(Capacity(0.0, 0), 1))) is None
    assert reach_of("office", OFFICE, 0).most == 2


def test_a_fleet_that_is_deleted_retires_everything() -> None:
    """`stoker fleet delete` was confirmed: idle and coming machines go, the minimum does not hold them."""
    seen = [instance(1), instance(2, 1), instance(3, leaving=True), instance(4, 1, cordoned=True)]
    busy = instance(5, reserved=True)
    actions = plan_fleet(Fleet(2, 4, deleting=True), [*seen, busy], NOW)
    assert retired(actions) == [1, 2, 4] and not any(isinstance(action, Create) for action in actions)
    assert retired(plan_fleet(Fleet(2, 4, deleting=True, forced=True), [*seen, busy], NOW)) == [1, 2, 4, 5]


def test_time_alone_changes_the_plan_when_the_first_machine_was_idle_for_long_enough() -> None:
    seen = [instance(1, 100), instance(2, 50), instance(3, 200, cordoned=True), instance(4)]
    assert next_at(Fleet(0, 4, 300), seen) == NOW + 200
    assert next_at(Fleet(0, 4, None), seen) is None
    assert plan_fleet(Fleet(0, 4, 300), seen, NOW + 199.9) == ()
    assert retired(plan_fleet(Fleet(0, 4, 300), seen, NOW + 200)) == [1]


@pytest.mark.parametrize(
    ("fleet", "seen", "keen"),
    [
        (Fleet(0, 4, 300), [instance(1, reserved=True)], False),
        (Fleet(0, 4, 2), [], True),
        (Fleet(0, 4, deleting=True), [], True),
        (Fleet(0, 1, 300), [instance(1, reserved=True), instance(2, reserved=True)], True),
        (Fleet(0, 1, 300), [instance(1, reserved=True), instance(2, leaving=True)], False),
        (Fleet(0, 4, 300), [instance(1, reserved=True, fits=False)], True),
    ],
)
def test_whether_somebody_waits_for_a_machine_to_fall_idle(fleet: Fleet, seen: list[FleetInstance], keen: bool) -> None:
    """Otherwise a busy fleet would be planned anew with every job that ends."""
    assert is_keen(fleet, seen, 5.0) is keen


POLICY = Fleet(0, 4, backends=("dummy",), max_price=2.0, resources=parse_request({"cpu": "2..8"}))


def machine(**fields: Any) -> Instance:
    blocks = Blocks(Capacity(fields.pop("cpu", 4), 8192, 1000), fields.pop("total", 1))
    return Instance(InstanceId(UUID(int=1)), None, fields.pop("backend", "dummy"), blocks, **{"offer": "m", **fields})


@pytest.mark.parametrize(
    ("changed", "one", "why"),
    [
        ({}, machine(price=1.0), ""),
        ({"backends": ("cloud",)}, machine(), "does not use dummy"),
        ({"spot_policy": SpotPolicy.ON_DEMAND}, machine(spot=True), "no spot"),
        ({"spot_policy": SpotPolicy.SPOT}, machine(), "only spot"),
        ({"max_price": 0.5}, machine(price=1.0), "max_price is 0.5"),
        ({}, machine(cpu=16), "it has 16 CPUs, not 2..8"),
        ({"resources": parse_request({"gpu": 1})}, machine(), "it has 0 GPUs, not 1 GPU"),
        ({"resources": parse_request({"memory": "16GB"})}, machine(), "it has 8 GB of memory, not 16GB.."),
        ({"cluster": True}, machine(location="north"), "a cluster at dummy/south"),
        ({"cluster": True}, machine(location="south"), ""),
        ({"blocks": 8}, machine(), ""),
        ({"backends": ()}, machine(owned=True, backend="local", offer=""), ""),
    ],
)
def test_what_no_longer_fits(changed: dict[str, Any], one: Instance, why: str) -> None:
    """The fleet was applied anew. How a machine is divided can be changed, what it is cannot."""
    found = misfit(replace(POLICY, **changed), one, ("dummy", "south"))
    assert (why in found) if why else found == ""


def test_a_cluster_is_where_most_of_its_machines_are() -> None:
    """What is leaving does not count, nor does a host of the user's, which says nothing of where it is."""
    north, south = machine(location="north"), machine(location="south")
    assert home([north, south, south]) == ("dummy", "south")
    assert home([south, north]) == ("dummy", "north")
    assert home([replace(north, state=S.TERMINATING), south]) == ("dummy", "south")
    assert home([machine(offer="", owned=True)]) is None


def test_how_machines_are_divided_is_the_fleets_word() -> None:
    fleet = replace(POLICY, blocks="auto")
    assert fleet.divides(machine(total=1)) == 64
    assert fleet.divides(machine(total=64)) is None
    assert POLICY.divides(machine(total=3)) is None
    gpus = tuple(Gpu(n, "A100", 80_000) for n in range(3))
    uneven = replace(machine(), blocks=Blocks(Capacity(4, 8192, 0, gpus), 3))
    assert replace(POLICY, blocks=2).divides(uneven) is None, "it stays as it is where it cannot be divided so"


def test_a_policy_is_read_back_as_it_was_written() -> None:
    fleet = Fleet(
        1, 5, None, True, ("dummy",), SpotPolicy.SPOT, 2.5, True, True, "auto", parse_request({"gpu": "A100:2"})
    )
    assert Fleet.from_json(json.loads(json.dumps(fleet.to_json()))) == fleet
    assert Fleet().to_json() == {}


@pytest.mark.parametrize("wrong", [(-1, None, 0.0), (3, 2, 0.0), (0, 2, -1.0)])
def test_a_fleet_that_cannot_be_is_refused(wrong: tuple[int, int | None, float]) -> None:
    """A minimum above the maximum would create and retire for ever."""
    with pytest.raises(UserError):
        Fleet(*wrong)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    least = draw(st.integers(0, 4))
    most = draw(st.none() | st.integers(least, 6))
    deleting = draw(st.booleans())
    return Fleet(least, most, draw(st.none() | st.floats(0, 1000)), deleting, forced=deleting and draw(st.booleans()))


seen_instances = st.lists(
    st.builds(
        FleetInstance,
        st.integers(1, 50).map(lambda n: InstanceId(UUID(int=n))),
        st.none() | st.floats(0, NOW * 1.1),
        *[st.booleans()] * 5,
    ),
    max_size=8,
    unique_by=lambda one: one.id,
)


@given(fleets(), seen_instances)
def test_planning_again_on_the_result_gives_nothing(fleet: Fleet, seen: list[FleetInstance]) -> None:
    """The loop runs every few seconds; what it did already it does not do again, whatever order rows come in."""
    actions = plan_fleet(fleet, seen, NOW)
    assert actions == plan_fleet(fleet, list(reversed(seen)), NOW)
    going = set(retired(actions))
    after = [replace(one, leaving=one.leaving or one.id.int in going) for one in seen]
    created = sum(action.n for action in actions if isinstance(action, Create))
    after += [instance(1000 + n) for n in range(created)]
    assert plan_fleet(fleet, after, NOW) == ()
    assert not created or fleet.max_nodes is None or len(after) <= fleet.max_nodes
    if not fleet.forced:
        assert not going & {one.id.int for one in seen if one.reserved}
    if not fleet.deleting:
        assert not going & {one.id.int for one in seen if not one.free}
        staying = sum(not one.leaving and one.fits for one in after)
        fitting = sum(not one.leaving and one.fits for one in seen)
        assert staying >= min(fleet.min_nodes, fitting)


def test_the_largest_fleet_is_told_where_none_could_ever_bring_so_many_together() -> None:
    hosts = reach_of("hosts", Fleet(), instances=3)
    cloud = reach_of("cloud", Fleet(max_nodes=8, backends=("dummy",)), instances=2)
    assert largest_below(9, [hosts, cloud]) == ("cloud", 8)
    assert largest_below(8, [hosts, cloud]) is None


def test_a_fleet_without_end_and_one_that_is_yet_to_come_refuse_nobody() -> None:
    endless = reach_of("endless", Fleet(backends=("dummy",)), instances=0)
    empty = reach_of("empty", Fleet(), instances=0)
    assert largest_below(1000, [endless, Reach("one", 1)]) is None
    assert largest_below(2, [empty]) is None, "hosts may still join it"
    assert largest_below(2, []) is None
