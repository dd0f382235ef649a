-- Who may see an entry of the journal, found by an index: a project, a fleet with its instances, or everybody (instances
-- of no fleet). Without one it is shown to nobody.
ALTER TABLE journal ADD COLUMN scope uuid;
ALTER TYPE journal_row ADD ATTRIBUTE scope uuid;

UPDATE journal SET scope = run.project_id FROM run WHERE run.id = journal.family;
UPDATE journal SET scope = coalesce(instance.fleet_id, '00000000-0000-0000-0000-000000000000')
FROM instance WHERE instance.id = journal.id;
UPDATE journal SET scope = managed_job.project_id FROM managed_job WHERE managed_job.id = journal.family;

CREATE INDEX journal_scope ON journal (scope, seq);
-- What people did is little beside what the server does by itself.
CREATE INDEX journal_by ON journal (scope, by, seq) WHERE by <> '';
-- An instance is a family of its own, and a job is found with its run.
DROP INDEX journal_id;

-- Where in a scope its entries reach a moment: all before it are older. That is so although neighbours may have been
-- written in another order than their times, as long as the caller allows for by how much those may differ.
CREATE FUNCTION journal_place(wanted uuid, moment double precision)
RETURNS bigint
LANGUAGE plpgsql STABLE AS $$
DECLARE
    most CONSTANT bigint := 9223372036854775807;
    low  bigint;
    high bigint;
    seen record;
BEGIN
    SELECT seq INTO low FROM journal WHERE (scope, seq) >= (wanted, 0::bigint) AND (scope, seq) <= (wanted, most)
    ORDER BY scope, seq LIMIT 1;
    SELECT seq + 1 INTO high FROM journal WHERE (scope, seq) >= (wanted, 0::bigint) AND (scope, seq) <= (wanted, most)
    ORDER BY scope DESC, seq DESC LIMIT 1;
    WHILE low < high LOOP
        SELECT seq, at INTO seen FROM journal
        WHERE (scope, seq) >= (wanted, (low + high) / 2) AND (scope, seq) < (wanted, high)
        ORDER BY scope, seq LIMIT 1;
        IF seen.at < moment THEN
            low := seen.seq + 1;
        ELSE
            high := (low + high) / 2;
        END IF;
    END LOOP;
    RETURN coalesce(low, 0);
END
$$;

-- The queue in its order, so that its first few are found without looking at all: priority, age, run, replica. The
-- priority is the run's, once more.
ALTER TABLE job ADD COLUMN priority integer NOT NULL DEFAULT 50;
ALTER TYPE job_row ADD ATTRIBUTE priority integer;
UPDATE job SET priority = run.priority FROM run WHERE run.id = job.run_id AND job.state = 'SUBMITTED';
CREATE INDEX job_turn ON job ((-priority), submitted_at, run_id, replica)
    WHERE state = 'SUBMITTED' AND latest AND instance_id IS NULL;
DROP INDEX job_waiting;
-- Those that do not want to wait, of which there are few.
CREATE INDEX run_impatient ON run (id)
    WHERE policy ->> 'on_no_capacity' = 'fail' AND state IN ('SUBMITTED', 'PROVISIONING', 'RUNNING');
