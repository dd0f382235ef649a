-- Arrays: the placer counts the replicas of a run that are on machines without looking at those that are not.

CREATE INDEX job_placed ON job (run_id, replica)
    WHERE instance_id IS NOT NULL AND state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED');
