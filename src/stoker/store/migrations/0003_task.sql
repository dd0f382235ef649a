-- Swarm tasks: what changes often is in `task` and small, what never changes is in `task_spec`, so that a
-- change of state copies some hundred bytes and the indices of the specification are written once.
-- Times are Unix seconds. There are no foreign keys between these tables: their checks would cost more than
-- the change itself and would lock rows out of order; `store/task.py` writes all of them together.

CREATE TABLE worker (
    id          uuid PRIMARY KEY,
    project_id  uuid NOT NULL,
    name        text NOT NULL,
    created_at  double precision NOT NULL,
    seen_at     double precision NOT NULL,
    lease_until double precision NOT NULL,
    -- When its tasks moved on because the lease was over; a heartbeat or a claim clears it.
    lost_at     double precision
);

CREATE INDEX worker_lease ON worker (lease_until) WHERE lost_at IS NULL;

CREATE TABLE task (
    id                       uuid PRIMARY KEY,
    project_id               uuid NOT NULL,
    created_at               double precision NOT NULL,
    entered_at               double precision NOT NULL,
    priority                 integer NOT NULL,
    max_retry_count          integer NOT NULL CHECK (max_retry_count >= 0),
    pending_dependency_count integer NOT NULL CHECK (pending_dependency_count >= 0),
    -- Counts claims and never goes down: the fence of a worker's news.
    attempt                  integer NOT NULL DEFAULT 0,
    retry_count              integer NOT NULL DEFAULT 0 CHECK (retry_count BETWEEN 0 AND attempt),
    crash_count              integer NOT NULL DEFAULT 0,
    -- The worker's own number of the claim that took the task.
    claim                    integer NOT NULL DEFAULT 0,
    has_command              boolean NOT NULL,
    state                    text NOT NULL CHECK (
        state IN ('inactive', 'available', 'running', 'pending_cancellation', 'terminated', 'cancelled')
    ),
    worker_id                uuid,
    CONSTRAINT held_by_a_worker CHECK ((worker_id IS NOT NULL) = (state IN ('running', 'pending_cancellation'))),
    CONSTRAINT open_after_its_dependencies CHECK (pending_dependency_count = 0 OR state IN ('inactive', 'cancelled')),
    CONSTRAINT barriers_do_not_wait CHECK (has_command OR state IN ('inactive', 'terminated', 'cancelled'))
) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05);

-- A million tasks change their state within a minute, so what ANALYZE saw is never true; a planner that believes that
-- a state is rare joins in loops. Without statistics it assumes a middling share and picks plans that hold for any.
ALTER TABLE task ALTER COLUMN state SET STATISTICS 0, ALTER COLUMN worker_id SET STATISTICS 0;

CREATE INDEX task_state ON task (state, id);
CREATE INDEX task_claimable ON task (project_id, priority DESC, id) WHERE state = 'available';
CREATE INDEX task_held ON task (worker_id) WHERE worker_id IS NOT NULL;

CREATE TABLE task_spec (
    task_id              uuid PRIMARY KEY,
    name                 text NOT NULL,
    -- An argv or a shell string; none: a barrier.
    command              jsonb,
    requested_resources  jsonb NOT NULL,
    estimated_runtime    double precision,
    max_termination_time double precision NOT NULL,
    -- What only the worker reads: env, working_dir, stdin and the like.
    detail               jsonb NOT NULL
);

CREATE INDEX task_spec_estimated_runtime ON task_spec (estimated_runtime) WHERE estimated_runtime IS NOT NULL;
-- Few different values among many tasks: a B-tree keeps each once, where an inverted index doubled the time of a load.
CREATE INDEX task_spec_requested_resources ON task_spec (requested_resources);

CREATE TABLE continuation (
    source uuid NOT NULL,
    target uuid NOT NULL,
    PRIMARY KEY (source, target),
    CHECK (source <> target)
);

-- The same trap: two fans of 100,000 make the planner expect 100,000 edges of each of a million tasks.
ALTER TABLE continuation ALTER COLUMN source SET STATISTICS 0, ALTER COLUMN target SET STATISTICS 0;

CREATE INDEX continuation_target ON continuation (target);

-- One row an attempt. Together they are the journal of the swarm.
CREATE TABLE execution (
    task_id         uuid NOT NULL,
    attempt         integer NOT NULL,
    worker_id       uuid NOT NULL,
    claimed_at      double precision NOT NULL,
    time_started    double precision,
    time_terminated double precision,
    exit_status     integer,
    outcome         text CHECK (outcome IN ('ended', 'cancelled', 'lost')),
    PRIMARY KEY (task_id, attempt)
) WITH (fillfactor = 80);
