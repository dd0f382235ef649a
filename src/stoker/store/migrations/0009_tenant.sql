-- An agent that runs without root cannot keep the jobs of two projects apart: it serves one. No foreign key, since the
-- agent remembers it longer than we may remember the project.

ALTER TABLE host ADD COLUMN project_id uuid;

-- Written before its instance is born: from its first moment on a job may be reserved there, and not just any job.
ALTER TABLE host DROP CONSTRAINT host_instance_id_fkey;
