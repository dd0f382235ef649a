"""Gangs, the jobs of one replica that wait for machines: a row a gang, so that none is ever seen in part."""

WAITING = """
WITH gang AS (
    SELECT job.run_id, job.replica, run.priority, min(job.submitted_at) AS submitted_at,
           array_agg(job.id ORDER BY job.node) AS jobs, array_agg(job.attempt ORDER BY job.node) AS attempts
    FROM job JOIN run ON run.id = job.run_id
    WHERE job.state = 'SUBMITTED' AND job.latest AND job.instance_id IS NULL
      AND run.state IN ('SUBMITTED', 'PROVISIONING', 'RUNNING')
    GROUP BY job.run_id, job.replica, run.priority
    ORDER BY run.priority DESC, min(job.submitted_at), job.run_id, job.replica
    LIMIT $1
)
SELECT gang.run_id, gang.replica, gang.submitted_at, gang.jobs, gang.attempts, run.policy, run.resources,
       run.project_id,
       EXISTS (
           SELECT FROM job AS old
           WHERE old.run_id = gang.run_id AND old.replica = gang.replica
             AND (NOT old.latest AND old.state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
                  OR old.latest AND old.state = 'SUBMITTED' AND old.ready_at IS NOT NULL)
       ) AS held_up
FROM gang JOIN run ON run.id = gang.run_id
"""
"""The first gangs in the order in which the plan takes them (`Gang.turn`), each with all its jobs.

A new submission may wait in the queue beside its predecessor, but is not placed before that has finished; nor is
one that waits before it is tried again, nor its replica.
"""

IMPATIENT = """
SELECT EXISTS (
    SELECT FROM job JOIN run ON run.id = job.run_id
    WHERE job.state = 'SUBMITTED' AND job.latest AND job.instance_id IS NULL
      AND run.policy ->> 'on_no_capacity' = 'fail'
)
"""
"""Whether one waits that does not want to: it has to be told at once that there is no room."""
