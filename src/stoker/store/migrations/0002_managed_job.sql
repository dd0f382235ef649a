-- Managed jobs and their tasks: one aggregate, locked by the job's row. Times are Unix seconds.

CREATE TABLE managed_job (
    id           uuid PRIMARY KEY,
    project_id   uuid NOT NULL,
    name         text NOT NULL,
    priority     integer NOT NULL,
    state        text NOT NULL CHECK (
        state IN ('INACTIVE', 'WAITING', 'LAUNCHING', 'ALIVE', 'ALIVE_BACKOFF', 'ALIVE_WAITING', 'DONE')
    ),
    version      bigint NOT NULL,
    entered_at   double precision NOT NULL,
    created_at   double precision NOT NULL,
    -- The earliest resume_at of its tasks.
    deadline_at  double precision,
    live_runs    integer NOT NULL CHECK (live_runs >= 0),
    cancel_asked boolean NOT NULL,
    -- The slots are counted over rows with live_runs, so a slot without one would not be seen.
    CONSTRAINT slots_have_runs CHECK (live_runs > 0 OR state NOT IN ('LAUNCHING', 'ALIVE')),
    CONSTRAINT no_slot_without_need CHECK (live_runs = 0 OR state IN ('LAUNCHING', 'ALIVE', 'ALIVE_WAITING'))
) WITH (fillfactor = 90);

CREATE INDEX managed_job_list ON managed_job (project_id, id DESC);
CREATE INDEX managed_job_deadline ON managed_job (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX managed_job_waiting ON managed_job (priority DESC, id) WHERE state IN ('WAITING', 'ALIVE_WAITING');
CREATE INDEX managed_job_live ON managed_job (state) WHERE live_runs > 0;

CREATE TABLE managed_task (
    id                     uuid PRIMARY KEY,
    managed_job_id         uuid NOT NULL REFERENCES managed_job ON DELETE CASCADE,
    index                  integer NOT NULL CHECK (index >= 0),
    name                   text NOT NULL,
    depends_on             integer[] NOT NULL,
    has_commands           boolean NOT NULL,
    max_restarts_on_errors integer NOT NULL CHECK (max_restarts_on_errors >= 0),
    recover_on_exit_codes  integer[] NOT NULL,
    -- The configuration of its runs, as the user wrote it.
    spec                   jsonb NOT NULL,
    state                  text NOT NULL CHECK (
        state IN (
            'PENDING', 'STARTING', 'RUNNING', 'RECOVERING', 'CANCELLING', 'SUCCEEDED', 'FAILED', 'FAILED_SETUP',
            'FAILED_NO_RESOURCE', 'FAILED_PRECHECKS', 'FAILED_CONTROLLER', 'CANCELLED'
        )
    ),
    -- The number of the run launched last: the fence of its news.
    attempt                integer NOT NULL,
    version                bigint NOT NULL,
    entered_at             double precision NOT NULL,
    launched               boolean NOT NULL,
    recovering             boolean NOT NULL,
    recovery_count         integer NOT NULL,
    recovery_source        text,
    restarts_on_errors     integer NOT NULL CHECK (restarts_on_errors <= max_restarts_on_errors),
    resume_at              double precision,
    backoff_step           integer NOT NULL,
    exit_code              integer,
    message                text NOT NULL,
    controller_error       text NOT NULL,
    outcome_before         text,
    UNIQUE (managed_job_id, index),
    CONSTRAINT waits_without_a_run CHECK (resume_at IS NULL OR (NOT launched AND state IN ('PENDING', 'RECOVERING')))
) WITH (fillfactor = 90);
