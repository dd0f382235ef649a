-- Fleets that people apply and delete. A deleted one stays as a row: its machines are in the history of its project.

ALTER TABLE fleet ADD COLUMN deleted_at double precision;
DROP INDEX fleet_name;
CREATE UNIQUE INDEX fleet_name ON fleet (name, project_id) NULLS NOT DISTINCT WHERE deleted_at IS NULL;

-- The fleet of a server's own host, as `stoker up` made it before it could be changed.
UPDATE fleet
SET spec = '{"type": "fleet", "name": "local", "backends": ["local"], "blocks": "auto"}',
    policy = '{"blocks": "auto", "idle_duration_s": null}'
WHERE name = 'local' AND project_id IS NULL AND policy = '{}';
