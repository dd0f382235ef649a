-- When a job's commands ended and when a run did, which may be long before anybody heard of it.

ALTER TABLE job ADD COLUMN exited_at double precision;
UPDATE job SET exited_at = entered_at WHERE exited;
ALTER TABLE job DROP COLUMN exited;
ALTER TYPE job_row DROP ATTRIBUTE exited, ADD ATTRIBUTE exited_at double precision;

ALTER TABLE run ADD COLUMN ended_at double precision;
ALTER TYPE run_row ADD ATTRIBUTE ended_at double precision;
