"""Ids sort by the time they were made, and what is made twice has one id."""

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.ids import derived, instance_name, uuid7

moments = st.floats(0, 4e9)
dice = st.integers(0, 2**80 - 1)


@given(moments, dice)
def test_an_id_is_a_uuid_of_version_seven(now: float, random_bits: int) -> None:
    made = uuid7(now, random_bits)
    assert (made.version, made.variant) == (7, "specified in RFC 4122")
    assert made.int >> 80 == int(now * 1000)


@given(moments, moments, dice, dice)
def test_ids_sort_by_the_millisecond_they_were_made_in(one: float, other: float, a: int, b: int) -> None:
    if int(one * 1000) < int(other * 1000):
        assert uuid7(one, a) < uuid7(other, b)


@given(dice, dice)
def test_seventy_four_bits_of_the_dice_are_kept(a: int, b: int) -> None:
    kept = ~((0xF << 76) | (3 << 62))
    assert (uuid7(0.0, a) == uuid7(0.0, b)) == (a & kept == b & kept)


def test_bits_beyond_eighty_do_not_reach_the_time() -> None:
    assert uuid7(1.0, 2**90) == uuid7(1.0, 0)


def test_the_same_parts_give_the_same_id_and_others_another_one() -> None:
    """A launch said twice makes one run."""
    parent = UUID(int=1)
    assert derived(parent, "task", 1) == derived(parent, "task", 1)
    assert len({derived(parent, "task", 1), derived(parent, "task", 2), derived(UUID(int=2), "task", 1)}) == 3


def test_machines_that_are_launched_together_have_different_names() -> None:
    """The beginning of an id is the time it was made, so the name is made of its end."""
    ids = [uuid7(1_777_000_000.0, dice) for dice in (0x9C41AB, 0x9C41AC)]
    assert [instance_name("aws", id) for id in ids] == ["aws-9c41ab", "aws-9c41ac"]
