"""Series of samples of long attempts."""

import pytest

from stoker.core.graph import Held
from stoker.core.limits import MOST_SAMPLES
from stoker.store import sample, task_list
from stoker.store.sample import Sample, Series
from tests.store.task_model import ANN, BOB, NOW, Databases, claim_all, draft, end, swarm


def value_of(n: int) -> float:
    return 1e9 if n == 1237 else float(n % 10)


@pytest.mark.parametrize(
    ("number", "at_once", "step"), [(1000, 300, 1), (1001, 7, 2), (4500, 1000, 8), (4000, 4000, 4)]
)
async def test_a_long_series_covers_the_whole_life_of_its_attempt(
    database: Databases, number: int, at_once: int, step: int
) -> None:
    """However many come with one report. The figures are of all of them, also of those that are not kept."""
    async with swarm(database, [draft(1)]) as db:
        (held,) = await claim_all(db)
        for first in range(0, number, at_once):
            news = [Sample(held, "cpu", NOW + n, value_of(n)) for n in range(first, min(number, first + at_once))]
            async with db.transaction() as tx:
                await sample.sampled(tx, [(ANN, one) for one in news] + [(ANN, Sample(held, "gpu", NOW + first, 0.5))])
        async with db.connection() as conn:
            found = await sample.series_of(conn, held.task, held.attempt)
    cpu = found["cpu"]
    assert cpu.at == [float(n) for n in range(0, number, step)]
    assert cpu.values == [value_of(n) for n in range(0, number, step)]
    assert MOST_SAMPLES / 2 <= len(cpu.at) <= MOST_SAMPLES
    values = [value_of(n) for n in range(number)]
    assert (cpu.n, cpu.most) == (number, max(values))
    assert cpu.mean == pytest.approx(sum(values) / number)
    assert found["gpu"].n == len(found["gpu"].at) == -(-number // at_once)


async def test_what_another_worker_says_and_what_comes_late_is_not_counted(database: Databases) -> None:
    async with swarm(database, [draft(1)]) as db:
        (held,) = await claim_all(db)
        async with db.transaction() as tx:
            mine, foreign = Sample(held, "gpu", NOW, 1.0), Sample(held, "gpu", NOW, 0.0)
            unknown = Sample(Held(held.task, 9), "gpu", NOW, 0.0)
            await sample.sampled(tx, [(BOB, foreign), (ANN, mine), (BOB, foreign), (ANN, unknown)])
        await end(db, ANN, [held])
        async with db.transaction() as tx:
            await sample.sampled(tx, [(ANN, foreign)])
            assert await sample.series_of(tx, held.task, held.attempt) == {"gpu": Series([0.0], [1.0], 1, 1.0, 1.0)}
            assert await tx.fetchval("SELECT gpu FROM execution") == 1.0
            await task_list.delete(tx, [held.task])
            assert await tx.fetchval("SELECT count(*) FROM task_series") == 0
