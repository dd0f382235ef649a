"""Plans are compared with a slow placer that tries everything."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.block import Blocks, Misfit
from stoker.core.gang import Gang, InstanceRoom
from stoker.core.ids import FleetId, JobId, RunId
from stoker.core.offer import FleetRoom, Offer, SpotPolicy
from stoker.core.placement import Plan, plan
from stoker.core.resources import Request
from stoker.core.why import WhyCode
from tests.core.placing import NEVER, NOW, A, B, capacity, gang, job, room


@dataclass(frozen=True)
class Place:
    """One machine of the slow placer."""

    blocks: Blocks
    fleet: FleetId | None
    site: tuple[str, str] | None = None


@dataclass(frozen=True)
class World:
    places: tuple[Place, ...]
    nodes_left: tuple[tuple[FleetId, int | None], ...]
    stock: tuple[int | None, ...]


def less(amount: int | None) -> int | None:
    return None if amount is None else amount - 1


def ways(
    world: World, one: Gang, request: Request, holder: JobId, offers: list[Offer], fleets: list[FleetRoom]
) -> Iterator[tuple[World, Place]]:
    """Every way to place one job, by the rules a person would be told."""
    for n, place in enumerate(world.places):
        if one.fleets is None or place.fleet in one.fleets:
            taken = place.blocks.take(holder, request, whole=one.whole)
            if not isinstance(taken, Misfit):
                changed = replace(place, blocks=taken)
                yield replace(world, places=(*world.places[:n], changed, *world.places[n + 1 :])), changed
    for (f, fleet), (o, offer) in itertools.product(enumerate(fleets), enumerate(offers)):
        if fleet.refuses(offer) or world.nodes_left[f][1] == 0 or world.stock[o] == 0:
            continue
        taken = Blocks(offer.capacity, offer.blocks).take(holder, request, whole=one.whole)
        if (one.fleets is None or fleet.fleet_id in one.fleets) and not isinstance(taken, Misfit):
            new = Place(taken, fleet.fleet_id, (offer.backend, offer.location))
            nodes = tuple((id_, less(left) if n == f else left) for n, (id_, left) in enumerate(world.nodes_left))
            stock = tuple(less(left) if n == o else left for n, left in enumerate(world.stock))
            yield World((*world.places, new), nodes, stock), new


def fits(world: World, one: Gang, offers: list[Offer], fleets: list[FleetRoom]) -> bool:
    def rest(world: World, jobs: tuple[tuple[JobId, Request], ...], used: tuple[Place, ...]) -> bool:
        if not jobs:
            return True
        for after, place in ways(world, one, jobs[0][1], jobs[0][0], offers, fleets):
            together = (*used, place)
            sites = {place.site for place in together if place.site}
            apart = len(one.jobs) > 1 and (len({place.fleet for place in together}) > 1 or len(sites) > 1)
            if not apart and rest(after, jobs[1:], together):
                return True
        return False

    return any(rest(world, order, ()) for order in set(itertools.permutations(one.jobs)))


def settled(world: World, one: Gang, made: Plan, offers: list[Offer], instances: int) -> World:
    """The world after what the plan says of one gang. Blocks are checked by `hold`, limits here."""
    mine = {id_ for id_, _ in one.jobs}
    places, nodes, stock = list(world.places), dict(world.nodes_left), list(world.stock)
    holds = [(one.instance_id.int - 1, one.job_id, one.blocks) for one in made.assignments if one.job_id in mine]
    for n, new in enumerate(made.launches, start=instances):
        part = [(n, id_, blocks) for id_, blocks in new.jobs if id_ in mine]
        if part and n == len(places):  # launches are listed in the order in which gangs asked for them
            place = offers.index(new.offer)
            nodes[new.fleet_id], stock[place] = less(nodes[new.fleet_id]), less(stock[place])
            site = (new.offer.backend, new.offer.location)
            places.append(Place(Blocks(new.offer.capacity, new.offer.blocks), new.fleet_id, site))
        holds += part
    for n, id_, blocks in holds:
        assert blocks and id_ not in places[n].blocks.held
        places[n] = replace(places[n], blocks=places[n].blocks.hold(id_, blocks))
    assert all(left is None or left >= 0 for left in (*nodes.values(), *stock)), "a limit was overrun"
    return World(tuple(places), tuple((id_, nodes[id_]) for id_, _ in world.nodes_left), tuple(stock))


KINDS = [(4, 0, 4), (2, 0, 1), (4, 2, 2), (4, 2, 4), (4, 1, 1)]  # cpu, gpus, blocks
WISHES: list[dict[str, Any]] = [
    {},
    {"cpu": 1},
    {"cpu": 2},
    {"cpu": 3},
    {"cpu": "..2"},
    {"gpu": 1},
    {"gpu": "1.."},
    {"gpu": 0.5},
    {"gpu": 4},
]


@st.composite
def rooms(draw: st.DrawFn) -> list[InstanceRoom]:
    found = []
    for n in range(1, draw(st.integers(0, 3)) + 1):
        cpu, gpus, total = draw(st.sampled_from(KINDS))
        barred = draw(st.sampled_from(["", "", "", "cordoned"]))
        more = {"fleet_id": draw(st.sampled_from([A, A, B, None])), "ready": draw(st.booleans()), "barred": barred}
        found.append(room(n, cpu, gpus, total, held=draw(st.integers(0, total)), **more))
    return found


@st.composite
def gangs(draw: st.DrawFn) -> list[Gang]:
    found = []
    for run in range(1, draw(st.integers(1, 5)) + 1):
        wishes = draw(st.lists(st.sampled_from(WISHES), min_size=1, max_size=3))
        more = {
            "priority": draw(st.integers(0, 2)),
            "submitted_at": float(draw(st.integers(0, 2))),
            "whole": len(wishes) > 1 and draw(st.booleans()),
            "ready": draw(st.sampled_from([True, True, True, False])),
            "fleets": draw(st.sampled_from([None, None, frozenset([A]), frozenset([A, B])])),
        }
        found.append(gang(run, *wishes, **more))
    return found


@st.composite
def markets(draw: st.DrawFn) -> tuple[list[Offer], list[FleetRoom]]:
    offers = []
    for n in range(draw(st.integers(0, 2))):
        cpu, gpus, total = draw(st.sampled_from(KINDS))
        price, available = float(draw(st.integers(0, 3))), draw(st.none() | st.integers(0, 2))
        location, spot = draw(st.sampled_from(["a", "b"])), draw(st.booleans())
        offers.append(Offer("aws", f"m{n}", location, capacity(cpu, gpus), price, spot, available, total))
    allowed = [
        FleetRoom(
            fleet,
            draw(st.none() | st.integers(0, 2)),
            draw(st.sampled_from(SpotPolicy)),
            draw(st.none() | st.just(2.0)),
        )
        for fleet in draw(st.sampled_from([(), (A,), (A, B)]))
    ]
    return offers, allowed


def only(run_id: RunId) -> Callable[[Gang], bool]:
    return lambda gang: gang.run_id == run_id


def placed(made: Plan, one: Gang) -> int:
    """How many of the gang's jobs the plan places."""
    ids = {id_ for id_, _ in one.jobs}
    listed = [one.job_id for one in made.assignments] + [id_ for new in made.launches for id_, _ in new.jobs]
    return sum(id_ in ids for id_ in listed)


@settings(max_examples=300, deadline=None)
@given(gangs(), rooms(), markets())
def test_a_gang_is_placed_exactly_when_it_fits_at_its_turn(
    waiting: list[Gang], seen: list[InstanceRoom], market: tuple[list[Offer], list[FleetRoom]]
) -> None:
    """Replays the plan in turn against a placer that tries everything: nothing is oversold, no gang is halved, no
    limit is overrun, and whoever was left could not have been placed."""
    offers, fleets = market
    made = plan(waiting, seen, offers, fleets, now=NOW, reserve_after_s=NEVER)
    assert made == plan(
        reversed(waiting), reversed(seen), reversed(offers), reversed(fleets), now=NOW, reserve_after_s=NEVER
    )
    left = {why.run_id: why for why in made.left}
    nodes = tuple((fleet.fleet_id, fleet.nodes_left) for fleet in fleets)
    # A barred instance is full, for the slow placer.
    world = World(tuple(Place(_closed(one), one.fleet_id) for one in seen), nodes, tuple(o.available for o in offers))
    for one in sorted(waiting, key=lambda one: one.turn):
        assert placed(made, one) == (0 if one.run_id in left else len(one.jobs)), "entirely or not at all"
        expected = one.ready and fits(world, one, offers, fleets)
        assert expected == (one.run_id not in left), (one, left.get(one.run_id))
        world = settled(world, one, made, offers, len(seen))
    assert [why.place for why in made.left] == list(range(1, len(left) + 1))
    assert all(why.sentence and why.of == len(left) for why in made.left)


def _closed(one: InstanceRoom) -> Blocks:
    blocks = one.blocks
    return blocks if not one.barred else Blocks(blocks.capacity, blocks.total, {job(999): tuple(range(blocks.total))})


@settings(max_examples=150, deadline=None)
@given(gangs(), rooms(), markets())
def test_what_is_impossible_does_not_fit_even_when_everything_is_free(
    waiting: list[Gang], seen: list[InstanceRoom], market: tuple[list[Offer], list[FleetRoom]]
) -> None:
    """A person who is told `impossible` may stop waiting; so it must be true, with every machine empty and open."""
    offers, fleets = market
    empty = tuple(Place(Blocks(one.blocks.capacity, one.blocks.total), one.fleet_id) for one in seen)
    nodes = tuple((fleet.fleet_id, fleet.nodes_left) for fleet in fleets)
    world = World(empty, nodes, tuple(None for _ in offers))
    by_run = {one.run_id: one for one in waiting}
    for why in plan(waiting, seen, offers, fleets, now=NOW, reserve_after_s=NEVER).left:
        if why.code is WhyCode.IMPOSSIBLE:
            assert why.limit and not fits(world, by_run[why.run_id], offers, fleets)


@settings(max_examples=150, deadline=None)
@given(gangs(), rooms(), st.floats(0, 1000))
def test_keeping_instances_never_takes_a_turn_from_anybody_ahead(
    waiting: list[Gang], seen: list[InstanceRoom], reserve_after_s: float
) -> None:
    """Whatever is kept, the first gang that is ready gets exactly what it would have got."""
    ahead: Iterable[Gang] = sorted((one for one in waiting if one.ready), key=lambda one: one.turn)
    first = next(iter(ahead), None)
    without = plan(waiting, seen, now=NOW, reserve_after_s=NEVER)
    with_it = plan(waiting, seen, now=NOW, reserve_after_s=reserve_after_s)
    if first is not None:
        assert placed(without, first) == placed(with_it, first)
    assert len(with_it.assignments) <= sum(len(one.jobs) for one in waiting)


@settings(max_examples=200, deadline=None)
@given(gangs(), rooms(), markets(), st.sampled_from([NEVER, 0.0]))
def test_what_somebody_is_told_by_a_plan_up_to_their_run_is_what_the_placer_does(
    waiting: list[Gang], seen: list[InstanceRoom], market: tuple[list[Offer], list[FleetRoom]], reserve_after_s: float
) -> None:
    """`stoker why` plans no further than to the run that it is asked about: placed there is placed, left is left."""
    whole = plan(waiting, seen, *market, now=NOW, reserve_after_s=reserve_after_s)
    for one in waiting:
        ahead = [other for other in waiting if other.turn <= one.turn]
        part = plan(
            ahead, seen, *market, now=NOW, reserve_after_s=reserve_after_s, detail={one.run_id},
            told=only(one.run_id),
        )  # fmt: skip
        assert placed(part, one) == placed(whole, one)
        assert bool(part.left) == (placed(whole, one) == 0)
        assert [why.run_id for why in part.left] in ([], [one.run_id])


@settings(max_examples=200, deadline=None)
@given(gangs(), rooms())
def test_once_the_placer_has_done_what_it_can_both_say_the_same_words(
    waiting: list[Gang], seen: list[InstanceRoom]
) -> None:
    """In a house where nothing moves, the reason by the plan up to a run is the one by the plan of all."""
    made = plan(waiting, seen, now=NOW, reserve_after_s=NEVER)
    by_instance = {room.id: room for room in seen}
    for one in made.assignments:
        room = by_instance[one.instance_id]
        by_instance[room.id] = replace(room, blocks=room.blocks.hold(one.job_id, one.blocks))
    rooms_now = list(by_instance.values())
    still = [one for one in waiting if placed(made, one) == 0]
    for why in plan(still, rooms_now, now=NOW, reserve_after_s=NEVER).left:
        mine = next(gang for gang in still if gang.run_id == why.run_id)
        ahead = [other for other in still if other.turn <= mine.turn]
        (told,) = plan(ahead, rooms_now, now=NOW, reserve_after_s=NEVER, told=only(mine.run_id)).left
        assert (told.code, told.sentence, told.place) == (why.code, why.sentence, why.place)
