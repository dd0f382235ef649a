-- Runs, jobs, instances, and the three tables of the engine: replica, journal, outbox.
-- Times are Unix seconds and come from the engine, never from the database's own clock.
-- `deadline_at` is when the record wants to hear TimeUp; the timer loop reads nothing else.

CREATE TABLE run (
    id            uuid PRIMARY KEY,
    project_id    uuid NOT NULL,
    name          text NOT NULL,
    policy        jsonb NOT NULL,
    resources     jsonb NOT NULL,
    -- Of the policy, once more: the queue is sorted by it.
    priority      integer NOT NULL,
    submitted_at  double precision NOT NULL,
    owner_id      uuid,
    owner_attempt integer NOT NULL DEFAULT 0,
    -- Small enough that a commit always loads all its jobs.
    whole         boolean NOT NULL,
    state         text NOT NULL CHECK (
        state IN ('PENDING', 'SUBMITTED', 'PROVISIONING', 'RUNNING', 'TERMINATING', 'TERMINATED', 'FAILED', 'DONE')
    ),
    version       bigint NOT NULL,
    entered_at    double precision NOT NULL,
    deadline_at   double precision,
    round         integer NOT NULL,
    replicas      integer NOT NULL CHECK (replicas >= 0),
    -- submitted, starting, running, done, retry, failed, exhausted, limit, gone, stopped, unfinished, master done
    tally         integer[] NOT NULL CHECK (0 <= ALL (tally)),
    reason        text,
    message       text NOT NULL DEFAULT '',
    cause         text,
    exit_code     integer,
    backoff_step  integer NOT NULL DEFAULT 0,
    resume_at     double precision,
    trigger_at    double precision,
    queued        boolean NOT NULL DEFAULT false
) WITH (fillfactor = 80);

-- A name is free again as soon as its run has finished.
CREATE UNIQUE INDEX run_name ON run (project_id, name) WHERE state NOT IN ('TERMINATED', 'FAILED', 'DONE');
CREATE INDEX run_deadline ON run (deadline_at) WHERE deadline_at IS NOT NULL;

CREATE TABLE job (
    id                uuid PRIMARY KEY,
    run_id            uuid NOT NULL REFERENCES run ON DELETE CASCADE,
    replica           integer NOT NULL,
    node              integer NOT NULL,
    attempt           integer NOT NULL,
    round             integer NOT NULL,
    submitted_at      double precision NOT NULL,
    latest            boolean NOT NULL,
    -- Not placed before then.
    ready_at          double precision,
    state             text NOT NULL CHECK (
        state IN ('SUBMITTED', 'PROVISIONING', 'PULLING', 'RUNNING', 'TERMINATING',
                  'DONE', 'FAILED', 'TERMINATED', 'ABORTED')
    ),
    version           bigint NOT NULL,
    entered_at        double precision NOT NULL,
    deadline_at       double precision,
    instance_id       uuid,
    blocks            integer[] NOT NULL DEFAULT '{}',
    owned             boolean NOT NULL DEFAULT true,
    shim              boolean NOT NULL DEFAULT true,
    running_at        double precision,
    unreachable_since double precision,
    reason            text,
    message           text NOT NULL DEFAULT '',
    exit_code         integer,
    exit_signal       integer,
    fate              text NOT NULL,
    tries             integer NOT NULL,
    failing_since     double precision,
    streak            integer NOT NULL,
    cleanup           text,
    exited            boolean NOT NULL DEFAULT false,
    gone              boolean NOT NULL DEFAULT false,
    remove_at         double precision,
    UNIQUE (run_id, replica, node, attempt)
) WITH (fillfactor = 80);

CREATE UNIQUE INDEX job_latest ON job (run_id, replica, node) WHERE latest;
CREATE INDEX job_unfinished ON job (run_id) WHERE state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED');
CREATE INDEX job_waiting ON job (run_id, replica, submitted_at)
    WHERE state = 'SUBMITTED' AND latest AND instance_id IS NULL;
CREATE INDEX job_holding_up ON job (run_id, replica)
    WHERE NOT latest AND state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED')
       OR latest AND state = 'SUBMITTED' AND ready_at IS NOT NULL;
CREATE INDEX job_instance ON job (instance_id)
    WHERE instance_id IS NOT NULL AND state NOT IN ('DONE', 'FAILED', 'TERMINATED', 'ABORTED');
CREATE INDEX job_deadline ON job (deadline_at) WHERE deadline_at IS NOT NULL;

CREATE TABLE instance (
    id                   uuid PRIMARY KEY,
    fleet_id             uuid,
    backend              text NOT NULL,
    capacity             jsonb NOT NULL,
    blocks               integer NOT NULL CHECK (blocks > 0),
    owned                boolean NOT NULL,
    shim                 boolean NOT NULL,
    provisioning_limit_s double precision NOT NULL,
    price                double precision NOT NULL,
    spot                 boolean NOT NULL,
    state                text NOT NULL CHECK (
        state IN ('PENDING', 'PROVISIONING', 'IDLE', 'BUSY', 'TERMINATING', 'TERMINATED')
    ),
    version              bigint NOT NULL,
    entered_at           double precision NOT NULL,
    deadline_at          double precision,
    held                 jsonb NOT NULL DEFAULT '{}',
    handle               text NOT NULL DEFAULT '',
    unreachable_since    double precision,
    health               text NOT NULL DEFAULT '',
    cordoned             boolean NOT NULL DEFAULT false,
    drain_at             double precision,
    destroy_at           double precision,
    message              text NOT NULL DEFAULT ''
) WITH (fillfactor = 80);

CREATE INDEX instance_unfinished ON instance (id) WHERE state <> 'TERMINATED';
CREATE INDEX instance_deadline ON instance (deadline_at) WHERE deadline_at IS NOT NULL;

-- A replica is one life of one server process. Its epoch is never given twice.
CREATE TABLE replica (
    epoch   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name    text NOT NULL,
    seen_at double precision NOT NULL
);

CREATE TABLE journal (
    seq    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     double precision NOT NULL,
    kind   text NOT NULL,
    id     uuid NOT NULL,
    -- The run, or the managed job, whose story this belongs to.
    family uuid NOT NULL,
    event  text NOT NULL,
    source text,
    target text NOT NULL,
    note   text NOT NULL,
    by     text NOT NULL
);

CREATE INDEX journal_family ON journal (family, seq);
CREATE INDEX journal_id ON journal (id, seq);
CREATE INDEX journal_at ON journal USING brin (at);

-- Wishes that were committed and not yet fulfilled. `owner` is the epoch of a replica; `fence` grows with each
-- wish and with each change of owner, and agents refuse an order with a lower one than they have seen.
CREATE SEQUENCE fence;

CREATE TABLE outbox (
    id      uuid PRIMARY KEY,
    fence   bigint NOT NULL DEFAULT nextval('fence'),
    owner   bigint NOT NULL,
    kind    text NOT NULL,
    target  uuid NOT NULL,
    family  uuid NOT NULL,
    attempt integer NOT NULL,
    phase   text NOT NULL,
    effect  text NOT NULL,
    payload jsonb NOT NULL,
    made_at double precision NOT NULL,
    due_at  double precision NOT NULL,
    tries   integer NOT NULL DEFAULT 0,
    error   text NOT NULL DEFAULT ''
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX outbox_owner ON outbox (owner, due_at);

-- Rows as a batch writes them: one array of these carries many rows in one parameter. `was` is the version that the
-- row was loaded with. They are types of their own, so that a column added to a table does not stop older replicas.
CREATE TYPE run_row AS (
    id uuid, project_id uuid, name text, policy jsonb, resources jsonb, submitted_at double precision, owner_id uuid,
    owner_attempt integer, whole boolean, priority integer, was bigint, state text, version bigint, entered_at double precision,
    deadline_at double precision, round integer, replicas integer, tally text, reason text, message text, cause text,
    exit_code integer, backoff_step integer, resume_at double precision, trigger_at double precision, queued boolean
);

CREATE TYPE job_row AS (
    id uuid, run_id uuid, replica integer, node integer, attempt integer, round integer, submitted_at double precision,
    was bigint, latest boolean, ready_at double precision, state text, version bigint, entered_at double precision,
    deadline_at double precision, instance_id uuid, blocks text, owned boolean, shim boolean,
    running_at double precision, unreachable_since double precision, reason text, message text, exit_code integer,
    exit_signal integer, fate text, tries integer, failing_since double precision, streak integer, cleanup text,
    exited boolean, gone boolean, remove_at double precision
);

CREATE TYPE instance_row AS (
    id uuid, fleet_id uuid, backend text, capacity jsonb, blocks integer, owned boolean, shim boolean,
    provisioning_limit_s double precision, price double precision, spot boolean, was bigint, state text,
    version bigint, entered_at double precision, deadline_at double precision, held jsonb, handle text,
    unreachable_since double precision, health text, cordoned boolean, drain_at double precision,
    destroy_at double precision, message text
);

CREATE TYPE journal_row AS (
    kind text, id uuid, family uuid, event text, source text, target text, note text, by text
);

CREATE TYPE outbox_row AS (
    id uuid, kind text, target uuid, family uuid, attempt integer, phase text, effect text, payload jsonb
);
