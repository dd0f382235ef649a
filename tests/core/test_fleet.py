"""A fleet keeps its minimum, respects its maximum, and does not pay for what nobody uses."""

from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import UserError
from stoker.core.fleet import Action, Create, Fleet, FleetInstance, Retire, plan_fleet
from stoker.core.ids import InstanceId

NOW = 10_000.0


def instance(n: int, idle_s: float | None = None, **more: bool) -> FleetInstance:
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
    seen = [instance(1, 1, fits=False), instance(2, fits=False)]
    actions = plan_fleet(Fleet(2, 4), seen, NOW)
    assert actions == (Retire(InstanceId(UUID(int=1)), "it no longer fits the fleet"), Create(2))


def test_a_lowered_maximum_retires_idle_machines_at_once() -> None:
    """`nodes: 0..4` became `0..1`: busy ones are left alone."""
    seen = [instance(1), instance(2, 1), instance(3, 2)]
    assert retired(plan_fleet(Fleet(0, 1, 300), seen, NOW)) == [3, 2]


def test_a_fleet_that_is_deleted_retires_everything() -> None:
    """`stoker fleet delete` was confirmed: idle, busy and coming machines go, the minimum does not hold them."""
    seen = [instance(1), instance(2, 1), instance(3, leaving=True), instance(4, 1, cordoned=True)]
    actions = plan_fleet(Fleet(2, 4, deleting=True), seen, NOW)
    assert retired(actions) == [1, 2, 4] and not any(isinstance(action, Create) for action in actions)


@pytest.mark.parametrize("wrong", [(-1, None, 0.0), (3, 2, 0.0), (0, 2, -1.0)])
def test_a_fleet_that_cannot_be_is_refused(wrong: tuple[int, int | None, float]) -> None:
    """A minimum above the maximum would create and retire for ever."""
    with pytest.raises(UserError):
        Fleet(*wrong)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    least = draw(st.integers(0, 4))
    most = draw(st.none() | st.integers(least, 6))
    return Fleet(least, most, draw(st.none() | st.floats(0, 1000)), draw(st.booleans()))


seen_instances = st.lists(
    st.builds(
        FleetInstance,
        st.integers(1, 50).map(lambda n: InstanceId(UUID(int=n))),
        st.none() | st.floats(0, NOW * 1.1),
        *[st.booleans()] * 4,
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
    if not fleet.deleting:
        assert not going & {one.id.int for one in seen if not one.free}
        staying = sum(not one.leaving and one.fits for one in after)
        fitting = sum(not one.leaving and one.fits for one in seen)
        assert staying >= min(fleet.min_nodes, fitting)
