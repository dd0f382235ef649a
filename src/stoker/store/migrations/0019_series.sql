-- What was seen of an attempt in all, whichever samples of it are kept: of a long series only every second one is, then every
-- fourth, and so on, so that they cover its whole life.
CREATE TABLE task_series (
    task_id uuid NOT NULL,
    attempt integer NOT NULL,
    series  text NOT NULL CHECK (series IN ('memory', 'cpu', 'gpu')),
    n       bigint NOT NULL,
    total   double precision NOT NULL,
    most    double precision NOT NULL,
    -- Each so-manieth is kept, beginning with the first.
    step    bigint NOT NULL DEFAULT 1 CHECK (step > 0),
    PRIMARY KEY (task_id, attempt, series)
) WITH (fillfactor = 80);

INSERT INTO task_series (task_id, attempt, series, n, total, most)
SELECT task_id, attempt, series, count(*), sum(value), max(value) FROM task_sample GROUP BY 1, 2, 3;

-- The mean of what was seen, written when the attempt ends.
ALTER TABLE execution ADD COLUMN gpu double precision;
