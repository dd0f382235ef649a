-- When a job is stopped because its machine leaves; until then its program uses the time that it was warned of.

ALTER TABLE job ADD COLUMN leave_at double precision;
ALTER TYPE job_row ADD ATTRIBUTE leave_at double precision;
