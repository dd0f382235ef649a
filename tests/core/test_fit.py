"""What tasks need and workers have: amounts as people write them, GPUs by index, and who gets what."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import UserError
from stoker.core.fit import (
    GPUS,
    MOST_KINDS,
    PATIENCE_S,
    Amounts,
    Asker,
    Candidate,
    Kind,
    Room,
    parse_amounts,
    plan_claims,
)

SMALL, LARGE = Kind(({"cpus": 1},)), Kind(({"cpus": 4},))
KINDS = {0: SMALL, 1: LARGE}
FOUR, TWO, NONE = Room({"cpus": 4}), Room({"cpus": 2}), Room({"cpus": 0})


def small(*tasks: int, **fields: Any) -> list[Candidate]:
    return [Candidate(task, 0, **fields) for task in tasks]


def given_to(
    askers: list[Asker], candidates: list[Candidate], kinds: dict[int, Kind] = KINDS, left: dict[str, int] | None = None
) -> list[list[Any]]:
    return [[one.task for one in some] for some in plan_claims(askers, candidates, kinds, left)]


# Amounts.


@pytest.mark.parametrize(
    ("written", "amounts"),
    [
        ({}, {"cpus": 1}),
        ({"cpus": 0}, {}),
        ({"cpus": 0.5, "memory": "4GB"}, {"cpus": 0.5, "memory": 4096}),
        ({"memory": " 1.5 GB ", "gpus": 2}, {"cpus": 1, "gpus": 2, "memory": 1536}),
        ({"memory": 100, "gpus": 0.25}, {"cpus": 1, "gpus": 0.25, "memory": 100}),
        ({"licence_2": 3.0, "cpus": 1.23456}, {"cpus": 1.235, "licence_2": 3}),
    ],
)
def test_amounts_are_read_as_people_write_them(written: object, amounts: Amounts) -> None:
    found = parse_amounts(written)
    assert found == amounts
    assert list(found) == sorted(found), "in one order, so that equal needs are one kind"


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        (None, "expected amounts by name"),
        ([1], "expected amounts by name"),
        ("cpus", "expected amounts by name"),
        ({f"a{n}": 1 for n in range(MOST_KINDS + 1)}, "at most 16 are taken"),
        ({"cpus": -1}, "cpus: '-1' is no amount"),
        ({"cpus": True}, "cpus: 'True' is no amount"),
        ({"cpus": "2"}, "cpus: '2' is no amount"),
        ({"cpus": float("nan")}, "cpus: 'nan' is no amount"),
        ({"cpus": float("inf")}, "cpus: 'inf' is no amount"),
        ({"cpus": None}, "cpus: 'None' is no amount"),
        ({"cpus": {"a": 1}}, "is no amount"),
        ({"memory": "4 apples"}, "memory: '4 apples' is no amount"),
        ({"gpus": 1.5}, "gpus: 1.5 is neither a part of one GPU nor a whole number"),
        ({"": 1}, "'' is no name of a resource"),
        ({"a b": 1}, "'a b' is no name of a resource"),
        ({"x" * 64: 1}, "is no name of a resource"),
        ({7: 1}, "'7' is no name of a resource"),
    ],
)
def test_what_is_no_amount_is_refused_by_name(written: object, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        parse_amounts(written)
    assert sentence in refused.value.sentence


# Room.


def test_what_is_not_named_is_not_needed_and_what_a_worker_has_not_does_not_fit() -> None:
    room = Room({"cpus": 2, "memory": 100})
    assert room.fits({})
    assert room.fits({"cpus": 2, "memory": 100})
    assert not room.fits({"cpus": 2.001})
    assert not room.fits({"licence": 1})
    assert not room.fits({"gpus": 0.1})


def test_a_part_of_a_gpu_comes_from_the_fullest_one_that_has_it() -> None:
    """So that whole ones are left for those who need whole ones."""
    room = Room({}, (1, 0.5, 0.25, 1))
    assert room.gpus_for(0.25) == (2,)
    assert room.gpus_for(0.5) == (1,)
    assert room.gpus_for(0.6) == (0,)
    assert room.without({"gpus": 0.5}).gpus == (1, 0, 0.25, 1)


def test_several_gpus_are_whole_ones_by_index() -> None:
    room = Room({}, (0.9, 1, 0, 1))
    assert room.gpus_for(1) == (1,)
    assert room.gpus_for(2) == (1, 3)
    assert room.gpus_for(3) == ()
    assert not room.fits({"gpus": 3})
    assert room.without({"gpus": 2}).gpus == (0.9, 0, 0, 0)


def test_parts_of_two_gpus_are_no_whole_one() -> None:
    assert not Room({}, (0.5, 0.5)).fits({"gpus": 1})


def test_the_first_alternative_that_fits_is_taken() -> None:
    options = [{"gpus": 1}, {"cpus": 8}, {"cpus": 2}]
    assert Room({"cpus": 8}, (1,)).first_fit(options) == 0
    assert Room({"cpus": 8}, (0.5,)).first_fit(options) == 1
    assert Room({"cpus": 4}).first_fit(options) == 2
    assert Room({"cpus": 1}).first_fit(options) is None


AMOUNT = st.integers(1, 40).map(lambda n: n / 10)
WANTED = st.fixed_dictionaries(
    {"cpus": AMOUNT}, optional={"memory": AMOUNT, "gpus": st.sampled_from([0.1, 0.25, 0.3, 0.5, 1, 2])}
)


@given(st.lists(WANTED, max_size=12))
def test_what_was_taken_and_given_back_leaves_the_room_as_it_was(wishes: list[dict[str, float]]) -> None:
    """Tenths add up to what they were, however often: nothing leaks over a worker's life."""
    whole = room = Room({"cpus": 8, "memory": 8}, (1, 1, 1))
    held: list[tuple[dict[str, float], tuple[int, ...]]] = []
    for wanted in wishes:
        if room.fits(wanted):
            indices = room.gpus_for(wanted[GPUS]) if GPUS in wanted else ()
            held.append((wanted, indices))
            assert room.without(wanted) == room.taken(wanted, indices)
            room = room.taken(wanted, indices)
        assert all(share >= 0 for share in room.gpus) and all(amount >= 0 for amount in room.amounts.values())
    for wanted, indices in held:
        room = room.given_back(wanted, indices)
    assert room == whole


# Who gets what.


def test_the_most_urgent_come_first_and_each_gets_as_many_as_it_takes() -> None:
    assert given_to([Asker(FOUR, FOUR, most=2)], small(7, 3, 5)) == [[7, 3]]


def test_askers_take_turns() -> None:
    askers = [Asker(FOUR, FOUR, most=9), Asker(FOUR, FOUR, most=1), Asker(FOUR, FOUR, most=9)]
    assert given_to(askers, small(*range(7))) == [[0, 3, 5], [1], [2, 4, 6]]


def test_no_one_gets_more_than_fits() -> None:
    assert given_to([Asker(FOUR, TWO, most=9)], small(*range(5))) == [[0, 1]]


def test_a_task_that_does_not_fit_now_is_passed_over_for_smaller_ones_behind_it() -> None:
    candidates = [Candidate("large", 1, waited_s=1.0), *small(1, 2, 3)]
    assert given_to([Asker(FOUR, TWO, most=9)], candidates) == [[1, 2]]


def test_after_a_while_it_takes_a_place_ahead_so_that_its_worker_makes_room() -> None:
    candidates = [Candidate("large", 1, waited_s=PATIENCE_S), *small(1)]
    assert given_to([Asker(FOUR, TWO, most=9)], candidates) == [["large", 1]]
    again = [Candidate("large", 1, waited_s=PATIENCE_S), Candidate("other", 1, waited_s=PATIENCE_S)]
    assert given_to([Asker(FOUR, TWO, most=9)], again) == [["large"]], "one worker makes room for one of them"


def test_a_worker_that_cannot_ever_take_it_does_not_wait_for_it() -> None:
    candidates = [Candidate("large", 1, waited_s=1000.0)]
    assert given_to([Asker(TWO, TWO, most=9, ahead=5)], candidates) == [[]]


def test_tasks_ahead_fit_no_room_now_and_are_as_many_as_the_worker_says() -> None:
    assert given_to([Asker(FOUR, NONE, most=9, ahead=2)], small(1, 2, 3)) == [[1, 2]]
    assert given_to([Asker(FOUR, NONE, most=1, ahead=2)], small(1, 2, 3)) == [[1]]


def test_whoever_can_begin_at_once_comes_before_one_that_takes_ahead() -> None:
    askers = [Asker(FOUR, NONE, most=9, ahead=9), Asker(FOUR, Room({"cpus": 1}), most=9)]
    assert given_to(askers, small(1, 2)) == [[2], [1]]


def test_an_alternative_is_taken_where_the_first_wish_has_no_room() -> None:
    kinds = {0: Kind(({"gpus": 1}, {"cpus": 2}))}
    room = Room({"cpus": 3}, (1,))
    assert given_to([Asker(room, room, most=9)], small(1, 2, 3), kinds) == [[1, 2]]


def test_of_tasks_with_a_key_only_so_many_are_handed_out_and_others_pass_them() -> None:
    kinds = {0: Kind(({"cpus": 1},), key="licence"), 1: SMALL}
    candidates = [*small(1, 2, 3), Candidate("free", 1)]
    askers = [Asker(FOUR, FOUR, most=9), Asker(FOUR, FOUR, most=9)]
    assert given_to(askers, candidates, kinds, {"licence": 2}) == [[1, "free"], [2]]
    assert given_to(askers, candidates, kinds, {"licence": -1}) == [["free"], []], "the limit was lowered meanwhile"
    assert given_to(askers, candidates, kinds) == [["free"], []], "nobody said how many"


def test_a_worker_of_a_group_takes_that_group_only_and_one_without_takes_all() -> None:
    kinds = {0: SMALL, 1: Kind(({"cpus": 1},), group="night"), 2: Kind(({"cpus": 1},), group="day")}
    candidates = [Candidate(kind, kind) for kind in kinds]
    assert given_to([Asker(FOUR, FOUR, most=9, group="night")], candidates, kinds) == [[1]]
    assert given_to([Asker(FOUR, FOUR, most=9)], candidates, kinds) == [[0, 1, 2]]


def test_a_worker_takes_nothing_that_lasts_longer_than_it_lives() -> None:
    candidates = [Candidate("long", 0, lasts_s=100.0), Candidate("short", 0, lasts_s=50.0), Candidate("unknown", 0)]
    askers = [Asker(FOUR, FOUR, most=9, time_left_s=60.0), Asker(FOUR, FOUR, most=1)]
    assert given_to(askers[:1], candidates) == [["short", "unknown"]]
    assert given_to(askers, candidates) == [["short", "unknown"], ["long"]]


def test_thousands_of_tasks_that_fit_nobody_are_not_held_against_each_of_thousands_of_workers() -> None:
    """All are half busy, and a user submits tasks that need a whole machine: the server answers others meanwhile."""

    class Counted(Room):
        looks = 0

        def fits(self, wanted: Amounts) -> bool:
            Counted.looks += 1
            return super().fits(wanted)

    askers = [Asker(FOUR, Counted({"cpus": 2}), most=1) for _ in range(1000)]
    assert given_to(askers, [Candidate(n, 1) for n in range(1000)]) == [[]] * 1000
    assert Counted.looks == 1000


ROOMS = st.builds(
    lambda cpus, memory, gpus: Room({"cpus": cpus, "memory": memory}, tuple(gpus)),
    st.integers(0, 4),
    st.integers(0, 4),
    st.lists(st.sampled_from([0.5, 1]), max_size=2),
)
ASKERS = st.builds(
    Asker, st.just(Room({"cpus": 4, "memory": 4}, (1, 1))), ROOMS, st.integers(0, 4), st.integers(0, 2),
    st.sampled_from([None, None, "a"]), st.sampled_from([None, None, 5.0]),
)  # fmt: skip
ALL = {
    number: Kind(options, group, key)
    for number, (options, group, key) in enumerate(
        (options, group, key)
        for options in (({"cpus": 1},), ({"cpus": 2, "memory": 1},), ({"gpus": 0.5}, {"cpus": 3}), ({"gpus": 2},))
        for group in (None, "a")
        for key in (None, "k")
    )
}
CANDIDATES = st.lists(
    st.builds(Candidate, st.just(0), st.sampled_from(sorted(ALL)), st.sampled_from([0.0, PATIENCE_S]),
              st.sampled_from([0.0, 3.0, 9.0])),
    max_size=25,
)  # fmt: skip


@given(st.lists(ASKERS, min_size=1, max_size=4), CANDIDATES, st.integers(0, 3))
def test_never_more_than_fits_and_nothing_that_fits_is_left(
    askers: list[Asker], drawn: list[Candidate], left: int
) -> None:
    candidates = [Candidate(n, one.kind, one.waited_s, one.lasts_s) for n, one in enumerate(drawn)]
    plan = plan_claims(askers, candidates, ALL, {"k": left})
    handed = Counter(one.task for some in plan for one in some)
    assert all(count == 1 for count in handed.values()), "to one worker each"
    assert sum(ALL[one.kind].key == "k" for some in plan for one in some) <= left
    rooms = []
    for asker, some in zip(askers, plan, strict=True):
        assert len(some) <= asker.most
        assert [one.task for one in some] == sorted(one.task for one in some), "in the order of the candidates"
        assert all(asker.group in (None, ALL[one.kind].group) for one in some)
        assert all(asker.time_left_s is None or one.lasts_s <= asker.time_left_s for one in some)
        room, beyond = _after(asker.room, some)
        assert beyond <= asker.ahead + 1
        rooms.append(room)
    keys_left = left - sum(ALL[one.kind].key == "k" for some in plan for one in some)
    for one in (one for one in candidates if one.task not in handed):
        kind = ALL[one.kind]
        if kind.key is None or keys_left > 0:
            for asker, room, some in zip(askers, rooms, plan, strict=True):
                free = len(some) < asker.most and (asker.time_left_s is None or one.lasts_s <= asker.time_left_s)
                assert not (free and asker.could(kind) and room.first_fit(kind.options) is not None), one


def _after(room: Room, some: list[Candidate]) -> tuple[Room, int]:
    """The room that is left, and how many of these were taken ahead of it."""
    beyond = 0
    for one in some:
        options = ALL[one.kind].options
        option = room.first_fit(options)
        if option is None:
            beyond += 1
        else:
            room = room.without(options[option])
    return room, beyond
