"""The short form of the campaign: a few seeds of every theme, and that a seed tells one story only."""

from collections.abc import Iterator

import pytest

from tests.sim.campaign import LEAST_EVENTS, all_rows, databases, quiet
from tests.sim.history import live
from tests.sim.theme import THEMES

SEEDS = range(2 * len(THEMES))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    quiet()
    with databases(1) as (url,):
        yield url


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_holds_and_settles(seed: int, url: str) -> None:
    """`make sim SEED=…` tells the story of one that fails."""
    history = live(seed, url)
    assert history.violation == "", "\n".join(history.story[-60:])
    assert history.events >= LEAST_EVENTS


def test_the_same_seed_tells_the_same_story(url: str) -> None:
    first, second = live(3, url), live(3, url)
    assert first.story == second.story
    assert len(first.story) > 100


def test_what_is_counted_as_visited_are_rows_of_the_tables(url: str) -> None:
    """A report that counts something else would look complete and say nothing."""
    assert live(5, url).rows.keys() <= all_rows()
