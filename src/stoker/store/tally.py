"""Figures of the swarm: counts and histograms by scope, kept up by the commits that change them.

Commits append to `task_delta`; `fold` sums that up into `task_tally` now and then; whoever reads adds both. What is
counted is said in the migration and in the statements of `claim.py` and `report.py`; the numbers of measures are here.
"""

from collections.abc import Mapping
from math import exp, log
from typing import Final, NamedTuple

from stoker.core.ids import ProjectId
from stoker.store.database import Connection

STATE, ENDED, WAIT, RUN, MEMORY, CPU, EXIT, LOST, RETRY, GPU = range(10)
STATES: Final = (
    "inactive", "available", "running", "pending_cancellation", "succeeded", "failed", "cancelled", "held",
)  # fmt: skip
"""By bucket of `STATE`."""
GROWTH: Final = 1.08
SLICE_S: Final = 10
"""`ENDED` counts how many ended in each so many seconds."""
KEPT_S: Final = 3600
FOLD_LOCK: Final = 0x7461_736B_7461_6C79

FIGURES: Final = """
SELECT measure, bucket, sum(n)::bigint AS n, sum(total) AS total FROM (
    SELECT measure, bucket, n, total FROM task_tally WHERE scope = $1
    UNION ALL SELECT measure, bucket, n, total FROM task_delta WHERE scope = $1
) AS figures
GROUP BY 1, 2 HAVING sum(n) <> 0
"""

SCOPE: Final = "SELECT id FROM task_scope WHERE project_id = $1 AND sort = $2 AND name = $3"

FOLD: Final = """
WITH gone AS (
    DELETE FROM task_delta RETURNING *
), summed AS (
    SELECT scope, measure, bucket, sum(n) AS n, sum(total) AS total FROM gone GROUP BY 1, 2, 3
    ORDER BY 1, 2, 3
), folded AS (
    INSERT INTO task_tally AS t (scope, measure, bucket, n, total) SELECT * FROM summed
    ON CONFLICT (scope, measure, bucket) DO UPDATE SET n = t.n + excluded.n, total = t.total + excluded.total
)
SELECT count(*) FROM gone
"""

FORGET: Final = "DELETE FROM task_tally WHERE measure = 1 AND bucket < $1"


class Figure(NamedTuple):
    n: int
    total: float


Figures = Mapping[int, Mapping[int, Figure]]
"""By measure and bucket."""


async def figures(conn: Connection, project: ProjectId, sort: str, name: str) -> Figures:
    """Empty where nothing was ever counted."""
    scope = await conn.fetchval(SCOPE, project, sort, name)
    found: dict[int, dict[int, Figure]] = {}
    if scope is not None:
        for row in await conn.fetch(FIGURES, scope):
            found.setdefault(row["measure"], {})[row["bucket"]] = Figure(row["n"], row["total"])
    return found


async def fold(conn: Connection, now: float) -> int:
    """How many rows were summed up; another replica may be at it."""
    if not await conn.fetchval("SELECT pg_try_advisory_xact_lock($1)", FOLD_LOCK):
        return 0
    await conn.execute(FORGET, int(now - KEPT_S) // SLICE_S)
    folded: int = await conn.fetchval(FOLD)
    return folded


def upper(bucket: int) -> float:
    """Where a bucket of a histogram ends."""
    return 0.0 if bucket == -200 else exp((bucket + 1) * log(GROWTH))
