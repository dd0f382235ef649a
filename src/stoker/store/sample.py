"""What workers see of running attempts: series of samples, thinned as they grow, and what they come to in all.

A series keeps each `step`-th sample, and when there are too many of them every second is dropped and the step doubled:
what is kept covers the whole life of the attempt evenly. How many there were, their sum and the most count all of them.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from stoker.core.graph import Held
from stoker.core.ids import TaskId, WorkerId
from stoker.core.limits import MOST_SAMPLES
from stoker.store.database import Connection, Record

# In the order of their keys, since two rounds may count for the same attempts.
COUNT: Final = """
WITH told AS (
    SELECT t.task_id, t.attempt, t.series, t.value
    FROM unnest($1::uuid[], $2::uuid[], $3::integer[], $4::text[], $5::float8[])
        AS t (worker_id, task_id, attempt, series, value)
    JOIN execution x ON x.task_id = t.task_id AND x.attempt = t.attempt
    WHERE x.worker_id = t.worker_id AND x.outcome IS NULL
), counted AS (
    INSERT INTO task_series AS s (task_id, attempt, series, n, total, most)
    SELECT task_id, attempt, series, count(*), sum(value), max(value) FROM told GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    ON CONFLICT (task_id, attempt, series) DO UPDATE
        SET n = s.n + excluded.n, total = s.total + excluded.total, most = greatest(s.most, excluded.most)
    RETURNING task_id, attempt, series, n, step
)
SELECT x.worker_id, c.task_id, c.attempt, c.series, c.n, c.step, x.claimed_at
FROM counted c JOIN execution x ON x.task_id = c.task_id AND x.attempt = c.attempt
"""

KEEP: Final = """
INSERT INTO task_sample (task_id, attempt, series, at, value)
SELECT * FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::float8[], $5::float8[])
"""

THIN: Final = """
WITH thinned AS (
    UPDATE task_series s SET step = step * 2
    FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS long (task_id, attempt, series)
    WHERE s.task_id = long.task_id AND s.attempt = long.attempt AND s.series = long.series
)
DELETE FROM task_sample WHERE ctid = ANY(ARRAY(
    SELECT place FROM (
        SELECT x.ctid AS place,
               row_number() OVER (PARTITION BY x.task_id, x.attempt, x.series ORDER BY x.at, x.ctid) AS rank
        FROM unnest($1::uuid[], $2::integer[], $3::text[]) AS long (task_id, attempt, series)
        JOIN task_sample x ON x.task_id = long.task_id AND x.attempt = long.attempt AND x.series = long.series
    ) AS ranked WHERE rank % 2 = 0
))
"""

SERIES: Final = """
SELECT s.series, s.at, s.value, f.n, f.total, f.most
FROM task_sample s LEFT JOIN task_series f USING (task_id, attempt, series)
WHERE s.task_id = $1 AND s.attempt = $2 ORDER BY s.series, s.at
"""


class Sample(NamedTuple):
    held: Held
    series: str
    at: float
    value: float


class Series(NamedTuple):
    """What is kept, and what all of it came to."""

    at: list[float]
    values: list[float]
    n: int
    mean: float
    most: float


async def sampled(conn: Connection, news: Collection[tuple[WorkerId, Sample]]) -> None:
    if not news:
        return
    told = sorted(news, key=lambda one: one[1].at)
    counted = await conn.fetch(
        COUNT,
        [worker for worker, _ in told],
        [one.held.task for _, one in told],
        [one.held.attempt for _, one in told],
        [one.series for _, one in told],
        [one.value for _, one in told],
    )
    known = {(row["worker_id"], Held(row["task_id"], row["attempt"]), row["series"]): row for row in counted}
    keys = [(worker, one.held, one.series) for worker, one in told]
    fresh, seen = Counter(keys), Counter[tuple[WorkerId, Held, str]]()
    kept = []
    for key, (_, one) in zip(keys, told, strict=True):
        if (row := known.get(key)) is not None:
            if (row["n"] - fresh[key] + seen[key]) % row["step"] == 0:
                kept.append((*one.held, one.series, one.at - row["claimed_at"], one.value))
            seen[key] += 1
    if kept:
        await conn.execute(KEEP, *zip(*kept, strict=True))
    await _thin(conn, counted)


async def _thin(conn: Connection, counted: Sequence[Record]) -> None:
    times = 1
    while long := [row for row in counted if -(-row["n"] // (row["step"] * times)) > MOST_SAMPLES]:
        columns = [[row[name] for row in long] for name in ("task_id", "attempt", "series")]
        await conn.execute(THIN, *columns)
        times *= 2


async def series_of(conn: Connection, id: TaskId, attempt: int) -> dict[str, Series]:
    found: dict[str, Series] = {}
    for name, at, value, n, total, most in await conn.fetch(SERIES, id, attempt):
        one = found.setdefault(name, Series([], [], n or 0, total / n if n else 0.0, most or 0.0))
        one.at.append(at)
        one.values.append(value)
    return found
