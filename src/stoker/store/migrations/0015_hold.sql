-- Runs that wait for somebody to release them, and how the last round of a schedule ended.

-- Of the policy, once more: the placer leaves such a run out.
ALTER TABLE run ADD COLUMN held boolean NOT NULL DEFAULT false;
ALTER TABLE run ADD COLUMN last_reason text;
ALTER TYPE run_row ADD ATTRIBUTE held boolean, ADD ATTRIBUTE last_reason text;
