-- Fleets that launch and retire machines, what their machines were launched as, and what they cost.

-- What the fleet was applied with is `spec`; what is decided by, as core's own JSON, is `policy`.
ALTER TABLE fleet ADD COLUMN policy jsonb NOT NULL DEFAULT '{}';
ALTER TABLE fleet ADD COLUMN version bigint NOT NULL DEFAULT 0;

-- The offer an instance was launched as, with its price and `spot`; '' for hosts that were simply there.
ALTER TABLE instance ADD COLUMN offer text NOT NULL DEFAULT '';
ALTER TABLE instance ADD COLUMN location text NOT NULL DEFAULT '';
-- When the provider accepted its launch, and when it was certainly gone: between them it costs.
ALTER TABLE instance ADD COLUMN launched_at double precision;
ALTER TABLE instance ADD COLUMN ended_at double precision;
-- When it was refused, preempted or lost, which speaks against its offer for a while.
ALTER TABLE instance ADD COLUMN failed_at double precision;
ALTER TYPE instance_row ADD ATTRIBUTE offer text, ADD ATTRIBUTE location text,
    ADD ATTRIBUTE launched_at double precision, ADD ATTRIBUTE ended_at double precision,
    ADD ATTRIBUTE failed_at double precision;

CREATE INDEX instance_failed ON instance (failed_at) WHERE failed_at IS NOT NULL;
CREATE INDEX instance_fleet ON instance (fleet_id) WHERE state <> 'TERMINATED';

-- Where other nodes of a run reach it.
ALTER TABLE host ADD COLUMN ip text NOT NULL DEFAULT '127.0.0.1';
