-- People, what they may do, what they submitted, and what the cluster knows of itself. Times are Unix seconds.

-- Small things that every replica must agree on, such as the secret that the tokens of runners are made from.
CREATE TABLE setting (
    name  text PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE "user" (
    id         uuid PRIMARY KEY,
    name       text NOT NULL UNIQUE,
    -- Of the whole server.
    admin      boolean NOT NULL,
    created_at double precision NOT NULL
);

-- A deleted project keeps its row until its runs are gone; its name is free at once.
CREATE TABLE project (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    created_at double precision NOT NULL,
    deleted_at double precision
);

CREATE UNIQUE INDEX project_name ON project (name) WHERE deleted_at IS NULL;

CREATE TABLE member (
    project_id uuid NOT NULL REFERENCES project ON DELETE CASCADE,
    user_id    uuid NOT NULL REFERENCES "user" ON DELETE CASCADE,
    role       text NOT NULL CHECK (role IN ('user', 'manager', 'admin')),
    added_at   double precision NOT NULL,
    PRIMARY KEY (project_id, user_id)
);

CREATE INDEX member_user ON member (user_id);

-- The secret itself is nowhere: only its SHA-256, which is enough for a secret of 256 random bits.
CREATE TABLE token (
    id         uuid PRIMARY KEY,
    user_id    uuid NOT NULL REFERENCES "user" ON DELETE CASCADE,
    -- One that opens a single project.
    project_id uuid REFERENCES project ON DELETE CASCADE,
    name       text NOT NULL,
    hash       bytea NOT NULL UNIQUE CHECK (octet_length(hash) = 32),
    created_at double precision NOT NULL,
    expires_at double precision,
    used_at    double precision
);

CREATE INDEX token_user ON token (user_id, id);

-- What was made under an idempotency key. `key` is the SHA-256 of who asked, where, and the key; `digest` that of what
-- was asked. It is written together with what was made, so one cannot exist without the other.
CREATE TABLE idempotency (
    key     bytea PRIMARY KEY,
    digest  bytea NOT NULL,
    answer  jsonb NOT NULL,
    made_at double precision NOT NULL
);

CREATE INDEX idempotency_made_at ON idempotency USING brin (made_at);

-- What a run was asked to be, beside its row: every commit loads the row, and only performers and people want this.
-- Written once together with the run, without a foreign key, whose check would cost as much as the row. Lists go
-- through this table, because it has no updates that would have to touch their index.
CREATE TABLE run_spec (
    run_id        uuid PRIMARY KEY,
    project_id    uuid NOT NULL,
    name          text NOT NULL,
    "user"        text NOT NULL,
    type          text NOT NULL,
    configuration jsonb NOT NULL,
    -- Hidden from people; its logs and rows are being removed.
    deleted_at    double precision
);

CREATE INDEX run_spec_list ON run_spec (project_id, run_id DESC);
CREATE INDEX run_spec_name ON run_spec (project_id, name, run_id DESC);
CREATE INDEX run_spec_deleted ON run_spec (deleted_at) WHERE deleted_at IS NOT NULL;

-- One entry in the life of a run, written when it finishes: lists of what failed.
CREATE INDEX run_finished ON run (project_id, state, id DESC) WHERE state IN ('TERMINATED', 'FAILED', 'DONE');

-- What is wrong with a run now is shown with it.
CREATE INDEX outbox_error ON outbox (family) WHERE error <> '';

CREATE TYPE run_spec_row AS (
    run_id uuid, project_id uuid, name text, "user" text, type text, configuration jsonb
);

CREATE TYPE idempotency_row AS (
    key bytea, digest bytea, answer jsonb
);

CREATE TABLE fleet (
    id         uuid PRIMARY KEY,
    name       text NOT NULL,
    -- None: every project may use it.
    project_id uuid REFERENCES project,
    spec       jsonb NOT NULL,
    created_at double precision NOT NULL
);

CREATE UNIQUE INDEX fleet_name ON fleet (name, project_id) NULLS NOT DISTINCT;
