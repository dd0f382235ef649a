-- What most batches of changes are about, locked and loaded in one round trip. It has to be a function that is
-- VOLATILE: each of its statements then sees what was committed before that statement, so jobs are read after
-- their run is held and are never older than it.

CREATE FUNCTION hold(run_ids uuid[], instance_ids uuid[], births uuid[])
RETURNS TABLE (runs run[], jobs job[], instances instance[], present uuid[])
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    whole_ids uuid[];
BEGIN
    runs := ARRAY(SELECT run FROM run WHERE id = ANY (run_ids) ORDER BY id FOR UPDATE SKIP LOCKED);
    whole_ids := ARRAY(SELECT id FROM unnest(runs) WHERE whole);
    jobs := ARRAY(
        SELECT job FROM job
        WHERE run_id = ANY (whole_ids) AND (latest OR state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED'))
        ORDER BY id
    );
    -- Instances come last, and all at once: of a run that is not loaded whole, others may be needed.
    IF cardinality(whole_ids) = cardinality(runs) THEN
        instances := ARRAY(
            SELECT instance FROM instance
            WHERE id = ANY (instance_ids || ARRAY(
                SELECT instance_id FROM unnest(jobs)
                WHERE state IN ('SUBMITTED', 'TERMINATING') AND instance_id IS NOT NULL
            ))
            ORDER BY id FOR UPDATE
        );
    END IF;
    IF cardinality(births) > 0 OR cardinality(runs) < cardinality(run_ids) THEN
        present := ARRAY(
            SELECT id FROM run WHERE id = ANY (births || run_ids)
            UNION ALL
            SELECT id FROM instance WHERE id = ANY (births)
        );
    END IF;
    RETURN NEXT;
END
$$;
