-- For a batch whose records are remembered: locks its runs and instances in the same order as `hold`, and refuses
-- when one of them is held by somebody else or is not as it is remembered. The version of a run also counts every
-- change of its jobs. VOLATILE, so that it sees what was committed until each lock was taken.

CREATE FUNCTION still(run_ids uuid[], run_versions bigint[], instance_ids uuid[], instance_versions bigint[])
RETURNS boolean
LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    same bigint;
BEGIN
    SELECT count(*) INTO same
    FROM (SELECT id, version FROM run WHERE id = ANY (run_ids) ORDER BY id FOR UPDATE SKIP LOCKED) AS held
    JOIN unnest(run_ids, run_versions) AS known (id, version) USING (id, version);
    IF same = cardinality(run_ids) AND cardinality(instance_ids) > 0 THEN
        SELECT same + count(*) INTO same
        FROM (SELECT id, version FROM instance WHERE id = ANY (instance_ids) ORDER BY id FOR UPDATE) AS held
        JOIN unnest(instance_ids, instance_versions) AS known (id, version) USING (id, version);
    END IF;
    IF same < cardinality(run_ids) + cardinality(instance_ids) THEN
        RAISE serialization_failure USING MESSAGE = 'a run or an instance is not as it is remembered';
    END IF;
    RETURN true;
END
$$;

-- Inside the statement, because one that is a transaction of its own cannot be taken back afterwards.

CREATE FUNCTION agreed(what text, touched bigint, expected bigint)
RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    IF touched <> expected THEN
        RAISE EXCEPTION '% touched % rows where % were locked and expected', what, touched, expected;
    END IF;
    RETURN touched;
END
$$;
