-- The way to the agent of an instance, and which replica watches it. Beside the instance, since every commit that
-- gives a block back loads the instance.

CREATE TABLE host (
    instance_id uuid PRIMARY KEY REFERENCES instance ON DELETE CASCADE,
    -- Where the shim listens: unix:PATH.
    address     text NOT NULL,
    token       text NOT NULL,
    -- The epoch of a replica; over when that replica is.
    watcher     bigint
);
