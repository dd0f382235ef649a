-- Volumes: places for data that outlive jobs. Their lives are in core/volume.py; who has one is `held`.

CREATE TABLE volume (
    id          uuid PRIMARY KEY,
    project_id  uuid NOT NULL,
    name        text NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('local', 'nfs', 'dummy')),
    -- As it was applied.
    spec        jsonb NOT NULL,
    made_by     text NOT NULL,
    exclusive   boolean NOT NULL,
    size_mb     bigint CHECK (size_mb > 0),
    source      text NOT NULL DEFAULT '',
    -- Where a local one may be made; NULL: anywhere.
    fleet_id    uuid,
    -- Where a local one is, and whether a person named that instance.
    instance_id uuid,
    named       boolean NOT NULL,
    used        boolean NOT NULL,
    held        uuid[] NOT NULL DEFAULT '{}',
    state       text NOT NULL CHECK (state IN ('SUBMITTED', 'PROVISIONING', 'ACTIVE', 'FAILED', 'DELETING', 'DELETED')),
    version     bigint NOT NULL,
    entered_at  double precision NOT NULL,
    created_at  double precision NOT NULL,
    deadline_at double precision,
    handle      text NOT NULL DEFAULT '',
    message     text NOT NULL DEFAULT '',
    CHECK (state <> 'DELETED' OR held = '{}'),
    CHECK (NOT exclusive OR cardinality(held) <= 1)
) WITH (fillfactor = 80);

-- A name is free again as soon as its volume is gone.
CREATE UNIQUE INDEX volume_name ON volume (project_id, name) WHERE state <> 'DELETED';
CREATE INDEX volume_deadline ON volume (deadline_at) WHERE deadline_at IS NOT NULL;
CREATE INDEX volume_instance ON volume (instance_id) WHERE instance_id IS NOT NULL AND state <> 'DELETED';
-- Unfinished runs that want volumes.
CREATE INDEX run_volumes ON run (project_id)
WHERE policy ? 'volumes' AND state NOT IN ('TERMINATED', 'FAILED', 'DONE');

CREATE TYPE volume_row AS (
    id uuid, project_id uuid, name text, kind text, spec jsonb, made_by text, exclusive boolean, size_mb bigint, source text,
    fleet_id uuid, was bigint, instance_id uuid, named boolean, used boolean, held text, state text, version bigint,
    entered_at double precision, created_at double precision, deadline_at double precision, handle text, message text
);
