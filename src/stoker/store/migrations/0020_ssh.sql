-- Hosts that people name in a fleet: how to log in, what is being done there, and whose keys are trusted.

CREATE TABLE ssh_host (
    fleet_id uuid NOT NULL REFERENCES fleet ON DELETE CASCADE,
    -- What tells it from others. No host is in two fleets.
    place    text NOT NULL UNIQUE,
    route    jsonb NOT NULL,
    -- False: its fleet does not name it any more, and what we have there has to go.
    wanted   boolean NOT NULL DEFAULT true,
    -- Something of ours may lie there.
    touched  boolean NOT NULL DEFAULT false,
    -- What was done there last, step by step, and what stands in the way.
    steps    jsonb NOT NULL DEFAULT '[]',
    trouble  text NOT NULL DEFAULT '',
    PRIMARY KEY (fleet_id, place)
);

-- The key by which a host was known when we first met it, and the last one that was another.
CREATE TABLE ssh_pin (
    place     text PRIMARY KEY,
    key       text NOT NULL,
    offered   text NOT NULL DEFAULT '',
    pinned_at double precision NOT NULL
);

-- Private keys, sealed with a key that is not in the database: of a fleet, by the name of their file, or of a project.
CREATE TABLE ssh_key (
    project_id uuid NOT NULL REFERENCES project ON DELETE CASCADE,
    fleet_id   uuid REFERENCES fleet ON DELETE CASCADE,
    name       text NOT NULL,
    public     text NOT NULL,
    sealed     bytea NOT NULL,
    made_at    double precision NOT NULL
);

CREATE UNIQUE INDEX ssh_key_of_fleet ON ssh_key (fleet_id, name) WHERE fleet_id IS NOT NULL;
CREATE UNIQUE INDEX ssh_key_of_project ON ssh_key (project_id) WHERE fleet_id IS NULL;
