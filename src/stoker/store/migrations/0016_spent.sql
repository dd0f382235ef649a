-- What a fleet has cost so far is also what was paid for machines that are gone, and there may be many of them.

CREATE INDEX instance_spent ON instance (fleet_id) INCLUDE (price, launched_at, ended_at)
    WHERE state = 'TERMINATED' AND price > 0 AND launched_at IS NOT NULL;
