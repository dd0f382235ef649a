-- The swarm from outside: what tasks need and whom they wait for, what workers are, what attempts left behind, and figures
-- that are kept up by the commits that change them.

-- What many tasks have in common when they are handed out. Rows are never changed, so replicas remember them.
CREATE TABLE task_kind (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id uuid NOT NULL,
    -- What it needs, and what would do as well, in the order of preference.
    options    jsonb NOT NULL,
    -- An estimated run time is rounded down to a power of two; 0 is none.
    at_least_s double precision NOT NULL,
    group_name text NOT NULL,
    key_name   text NOT NULL,
    UNIQUE (project_id, options, at_least_s, group_name, key_name)
);

-- Of all tasks with such a key, only so many run at once.
CREATE TABLE task_key (
    project_id uuid NOT NULL,
    name       text NOT NULL,
    most       integer NOT NULL CHECK (most > 0),
    PRIMARY KEY (project_id, name)
);

-- What figures are kept for: a project, a group, a label.
CREATE TABLE task_scope (
    id         integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    project_id uuid NOT NULL,
    sort       text NOT NULL CHECK (sort IN ('project', 'group', 'label')),
    name       text NOT NULL,
    UNIQUE (project_id, sort, name)
);

ALTER TABLE task
    ADD COLUMN kind_id     integer NOT NULL DEFAULT 0,
    ADD COLUMN scopes      integer[] NOT NULL DEFAULT '{}',
    ADD COLUMN keyed       boolean NOT NULL DEFAULT false,
    ADD COLUMN crash_limit integer NOT NULL DEFAULT 5,
    -- Why nobody may claim it: its time has not come, or it took too many workers down.
    ADD COLUMN hold        text CHECK (hold IN ('clock', 'poison')),
    ADD COLUMN start_at    double precision,
    ADD COLUMN deadline_at double precision,
    ADD COLUMN exit_status integer;

DROP INDEX task_claimable;
CREATE INDEX task_claimable ON task (project_id, kind_id, priority DESC, id) WHERE state = 'available' AND hold IS NULL;
CREATE INDEX task_of_key ON task (kind_id) WHERE keyed AND worker_id IS NOT NULL;
CREATE INDEX task_start ON task (start_at) WHERE hold = 'clock';
CREATE INDEX task_deadline ON task (deadline_at)
    WHERE deadline_at IS NOT NULL AND state IN ('inactive', 'available', 'running');
CREATE INDEX task_poison ON task (project_id, id) WHERE hold = 'poison';
DROP INDEX task_state;
CREATE INDEX task_state ON task (project_id, state, id);

-- Lists go by the specifications, whose indices are written once, and not again with each change of state.
ALTER TABLE task_spec
    ADD COLUMN project_id uuid,
    ADD COLUMN user_name  text NOT NULL DEFAULT '',
    ADD COLUMN group_name text,
    ADD COLUMN labels     jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN retry_of   uuid;

UPDATE task_spec SET project_id = task.project_id FROM task WHERE task.id = task_spec.task_id;
ALTER TABLE task_spec ALTER COLUMN project_id SET NOT NULL;
CREATE INDEX task_spec_project ON task_spec (project_id, task_id);
CREATE INDEX task_spec_group ON task_spec (project_id, group_name, task_id) WHERE group_name IS NOT NULL;
CREATE INDEX task_spec_labels ON task_spec USING gin (labels jsonb_path_ops) WHERE labels <> '{}';
CREATE INDEX task_spec_name ON task_spec (project_id, name, task_id) WHERE name <> '';

ALTER TABLE worker
    ADD COLUMN total      jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN gpus       double precision[] NOT NULL DEFAULT '{}',
    ADD COLUMN group_name text,
    ADD COLUMN labels     jsonb NOT NULL DEFAULT '{}',
    ADD COLUMN version    text NOT NULL DEFAULT '',
    ADD COLUMN ends_at    double precision,
    -- It said goodbye.
    ADD COLUMN left_at    double precision;

CREATE INDEX worker_of_project ON worker (project_id, id);

ALTER TABLE execution
    ADD COLUMN cpu_s        double precision,
    ADD COLUMN memory_bytes double precision,
    ADD COLUMN message      text NOT NULL DEFAULT '',
    ADD COLUMN result       text;

-- What a worker saw of a running attempt: `at` in seconds since it was claimed.
CREATE TABLE task_sample (
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    series  text NOT NULL CHECK (series IN ('memory', 'cpu', 'gpu')),
    at      double precision NOT NULL,
    value   double precision NOT NULL
);
CREATE INDEX task_sample_of ON task_sample (task_id, attempt, series, at);

-- Short output, which came with the report of the end. What is longer is in files.
CREATE TABLE task_output (
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    stdout  bytea NOT NULL,
    stderr  bytea NOT NULL,
    PRIMARY KEY (task_id, attempt)
);

-- Figures, and what was added to them since they were last summed up. Commits only append, so that no two of them wait for
-- each other's counts; who reads adds both.
CREATE TABLE task_tally (
    scope   integer NOT NULL,
    measure smallint NOT NULL,
    bucket  integer NOT NULL,
    n       bigint NOT NULL,
    total   double precision NOT NULL,
    PRIMARY KEY (scope, measure, bucket)
);
CREATE TABLE task_delta (
    scope   integer NOT NULL,
    measure smallint NOT NULL,
    bucket  integer NOT NULL,
    n       bigint NOT NULL,
    total   double precision NOT NULL DEFAULT 0
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);
CREATE INDEX task_delta_scope ON task_delta (scope);

-- Buckets that grow by eight percent: the middle of one is never more than four percent away.
CREATE FUNCTION task_bucket(value double precision) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
SELECT CASE WHEN value < 0.000001 THEN -200 ELSE floor(ln(value) / ln(1.08))::integer END
$$;

-- The buckets of measure 0, and the places of `STATES` in store/tally.py.
CREATE FUNCTION task_stand(state text, hold text, has_command boolean, exit_status integer) RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
SELECT CASE state
    WHEN 'inactive' THEN 0
    WHEN 'available' THEN CASE WHEN hold = 'poison' THEN 7 ELSE 1 END
    WHEN 'running' THEN 2
    WHEN 'pending_cancellation' THEN 3
    WHEN 'terminated' THEN CASE WHEN exit_status = 0 OR NOT has_command THEN 4 ELSE 5 END
    ELSE 6
END
$$;

-- Counts by state, and how many ended in which ten seconds: whatever a statement did to tasks, one row for each figure.
CREATE FUNCTION task_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO task_delta (scope, measure, bucket, n)
        SELECT scope, measure, bucket, count(*)
        FROM new_task CROSS JOIN LATERAL unnest(scopes) AS scope CROSS JOIN LATERAL (VALUES
            (0, task_stand(state, hold, has_command, exit_status)),
            (1, CASE WHEN state IN ('terminated', 'cancelled') THEN floor(entered_at / 10)::integer END)
        ) AS figure (measure, bucket)
        WHERE bucket IS NOT NULL GROUP BY 1, 2, 3;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO task_delta (scope, measure, bucket, n)
        SELECT scope, 0, task_stand(state, hold, has_command, exit_status), -count(*)
        FROM old_task CROSS JOIN LATERAL unnest(scopes) AS scope GROUP BY 1, 3;
    ELSE
        INSERT INTO task_delta (scope, measure, bucket, n)
        SELECT scope, measure, bucket, sum(sign)
        FROM (SELECT 1 AS sign, * FROM new_task UNION ALL SELECT -1, * FROM old_task) AS changed
        CROSS JOIN LATERAL unnest(scopes) AS scope CROSS JOIN LATERAL (VALUES
            (0, task_stand(state, hold, has_command, exit_status)),
            (1, CASE WHEN state IN ('terminated', 'cancelled') THEN floor(entered_at / 10)::integer END)
        ) AS figure (measure, bucket)
        WHERE bucket IS NOT NULL GROUP BY 1, 2, 3 HAVING sum(sign) <> 0;
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER task_stored AFTER INSERT ON task
    REFERENCING NEW TABLE AS new_task FOR EACH STATEMENT EXECUTE FUNCTION task_counted();
CREATE TRIGGER task_changed AFTER UPDATE ON task
    REFERENCING OLD TABLE AS old_task NEW TABLE AS new_task FOR EACH STATEMENT EXECUTE FUNCTION task_counted();
CREATE TRIGGER task_removed AFTER DELETE ON task
    REFERENCING OLD TABLE AS old_task FOR EACH STATEMENT EXECUTE FUNCTION task_counted();
