"""Circles among many edges."""

from graphlib import CycleError, TopologicalSorter

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.graph import STEPS, knots

Edges = list[tuple[int, int]]


def left_of(edges: Edges) -> tuple[Edges, int]:
    """With how often others had their turn."""
    steps, turns = knots(edges), 0
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: Edges = done.value
            return found, turns
        turns += 1


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=20))
def test_edges_are_left_exactly_where_there_is_a_circle(edges: Edges) -> None:
    order: TopologicalSorter[int] = TopologicalSorter()
    for source, target in edges:
        order.add(target, source)
    try:
        order.prepare()
        circle: set[int] = set()
    except CycleError as error:
        circle = set(error.args[1])
    left, _ = left_of(edges)
    assert bool(left) == bool(circle)
    assert set(left) <= set(edges)
    assert circle <= {end for edge in left for end in edge} or not circle


def test_others_have_their_turn_also_where_a_hundred_thousand_wait_for_one() -> None:
    number = 200 * STEPS
    left, turns = left_of([(0, n) for n in range(1, number)])
    assert left == []
    assert turns >= 390
