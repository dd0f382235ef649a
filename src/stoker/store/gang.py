"""Gangs, the jobs of one replica that wait for machines: a row a gang, so that none is ever seen in part.

The queue is an index (`job_turn`), in the order in which the plan takes gangs (`Gang.turn`). It is walked from its
head, from run to run, and no further than somebody wants to look: what a look costs does not depend on how many wait
behind, on how many jobs an array has, or on how much has ended.
"""

from typing import NamedTuple

from stoker.core.ids import RunId
from stoker.store.database import Connection

_WAITS = "job.state = 'SUBMITTED' AND job.latest AND job.instance_id IS NULL"

_TURN = "-job.priority, job.submitted_at, job.run_id"

_WALK = f"""
WITH RECURSIVE turn AS (
    (SELECT -job.priority AS urgency, job.submitted_at, job.run_id FROM job
     WHERE {_WAITS} ORDER BY {_TURN} LIMIT 1)
    UNION ALL
    SELECT next.* FROM turn CROSS JOIN LATERAL (
        SELECT -job.priority, job.submitted_at, job.run_id FROM job
        WHERE {_WAITS} AND ({_TURN}) > (turn.urgency, turn.submitted_at, turn.run_id)
        ORDER BY {_TURN} LIMIT 1
    ) AS next
)
"""
"""Each run's place in the queue. It goes on only as long as rows are taken from it, in the order of the queue."""

_ROOM = """
CASE WHEN run.policy ? 'max_parallel' THEN greatest(0, (run.policy ->> 'max_parallel')::int - (
    SELECT count(DISTINCT placed.replica)::int FROM job AS placed
    WHERE placed.run_id = run.id AND placed.instance_id IS NOT NULL
      AND placed.state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
)) END
"""
"""How many of its replicas `max_parallel` still lets on machines; NULL: all."""

_HELD_UP = """
EXISTS (
    SELECT FROM job AS old
    WHERE old.run_id = gang.run_id AND old.replica = gang.replica
      AND (NOT old.latest AND old.state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
           OR old.latest AND old.state = 'SUBMITTED' AND old.ready_at IS NOT NULL)
)
"""
"""A new submission may wait in the queue beside its predecessor, but is not placed before that has finished; nor is one
that waits before it is tried again, nor its replica."""

_WHOLE = f"""
SELECT gang.run_id, gang.replica, whole.submitted_at, whole.jobs, whole.nodes, whole.attempts, gang.policy,
       gang.resources, gang.project_id, gang.room, {_HELD_UP} AS held_up
FROM gang CROSS JOIN LATERAL (
    SELECT array_agg(job.id ORDER BY job.node) AS jobs, array_agg(job.node ORDER BY job.node) AS nodes,
           array_agg(job.attempt ORDER BY job.node) AS attempts, min(job.submitted_at) AS submitted_at
    FROM job WHERE job.run_id = gang.run_id AND job.replica = gang.replica AND {_WAITS}
) AS whole
"""

WAITING = f"""
{_WALK},
gang AS (
    SELECT turn.urgency, turn.submitted_at, turn.run_id, first.replica, run.policy, run.resources, run.project_id,
           run.room
    FROM turn
    CROSS JOIN LATERAL (
        SELECT state, held, policy - 'only' AS policy, resources, project_id, {_ROOM} AS room
        FROM run WHERE run.id = turn.run_id OFFSET 0
    ) AS run
    CROSS JOIN LATERAL (
        SELECT job.replica FROM job
        WHERE {_WAITS} AND ({_TURN}, job.replica) >= (turn.urgency, turn.submitted_at, turn.run_id, 0)
          AND ({_TURN}) <= (turn.urgency, turn.submitted_at, turn.run_id)
        GROUP BY {_TURN}, job.replica ORDER BY {_TURN}, job.replica LIMIT least($1, run.room)
    ) AS first
    WHERE run.state IN ('SUBMITTED', 'PROVISIONING', 'RUNNING') AND NOT run.held
    LIMIT $1
)
{_WHOLE} WHERE gang.submitted_at = whole.submitted_at
"""

"""The first gangs of the queue, each with all its jobs, at the place of the oldest of them."""

AHEAD = f"""
WITH gang AS MATERIALIZED (
    SELECT first.*, run.policy, run.resources, run.project_id, run.room, count(*) OVER () AS waiting,
           (first.urgency, first.submitted_at, first.run_id, first.replica)
           <= (-$2::int, $3::double precision, $4::uuid, $5::int) AS ahead
    FROM (
        SELECT -max(job.priority) AS urgency, min(job.submitted_at) AS submitted_at, job.run_id, job.replica,
               count(*) AS jobs
        FROM job WHERE {_WAITS} GROUP BY job.run_id, job.replica
    ) AS first CROSS JOIN LATERAL (
        SELECT state, held, policy - 'only' AS policy, resources, project_id, {_ROOM} AS room
        FROM run WHERE run.id = first.run_id OFFSET 0
    ) AS run
    WHERE run.state IN ('SUBMITTED', 'PROVISIONING', 'RUNNING') AND NOT run.held
)
SELECT run_id, replica, submitted_at, jobs, policy, resources, project_id, room, {_HELD_UP} AS held_up, waiting,
       count(*) OVER () AS place
FROM gang WHERE ahead ORDER BY urgency, submitted_at, run_id, replica LIMIT $1
"""
"""Of one gang and those before it, how many jobs each has, and not which: what waits behind it keeps nobody waiting.
`OFFSET 0`: a run is found by its id, and not among all that have not finished."""

ONE = f"""
WITH gang AS (
    SELECT id AS run_id, $2::int AS replica, policy - 'only' AS policy, resources, project_id, {_ROOM} AS room
    FROM run WHERE id = $1
)
{_WHOLE} WHERE whole.jobs IS NOT NULL
"""

IMPATIENT = f"""
SELECT EXISTS (
    SELECT FROM run JOIN job ON job.run_id = run.id AND {_WAITS}
    WHERE run.policy ->> 'on_no_capacity' = 'fail' AND run.state IN ('SUBMITTED', 'PROVISIONING', 'RUNNING')
      AND NOT run.held
)
"""
"""Whether one waits that does not want to: it has to be told at once that there is no room."""

OF_RUN = f"""
SELECT gang.replica, gang.submitted_at, gang.priority, {_HELD_UP} AS held_up,
       (SELECT max(job.ready_at) FROM job
        WHERE job.run_id = gang.run_id AND job.replica = gang.replica AND {_WAITS}) AS ready_at
FROM (
    SELECT job.run_id, job.replica, min(job.submitted_at) AS submitted_at, max(job.priority) AS priority
    FROM job WHERE job.run_id = $1 AND {_WAITS} GROUP BY job.run_id, job.replica
) AS gang
ORDER BY gang.submitted_at, gang.replica LIMIT $2
"""
"""Which replicas of a run wait, and until when those that are not tried before."""


class Standing(NamedTuple):
    """One replica of a run in the queue."""

    replica: int
    submitted_at: float
    priority: int
    held_up: bool
    ready_at: float | None
    """Not tried before then."""


async def of_run(tx: Connection, run_id: RunId, limit: int) -> list[Standing]:
    return [Standing(*row.values()) for row in await tx.fetch(OF_RUN, run_id, limit)]
