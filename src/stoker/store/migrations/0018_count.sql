-- The counts of 0017, when a statement changes a hundred thousand tasks: those that are alike are counted first, and only
-- their sums are laid out by scope and measure.

CREATE OR REPLACE FUNCTION task_counted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO task_delta (scope, measure, bucket, n)
        SELECT scope, measure, bucket, sum(alike.n)
        FROM (
            SELECT scopes, task_stand(state, hold, has_command, exit_status) AS stand,
                   CASE WHEN state IN ('terminated', 'cancelled') THEN floor(entered_at / 10)::integer END AS ended,
                   count(*) AS n
            FROM new_task GROUP BY 1, 2, 3
        ) AS alike
        CROSS JOIN LATERAL unnest(scopes) AS scope
        CROSS JOIN LATERAL (VALUES (0, stand), (1, ended)) AS figure (measure, bucket)
        WHERE bucket IS NOT NULL GROUP BY 1, 2, 3;
    ELSIF TG_OP = 'DELETE' THEN
        INSERT INTO task_delta (scope, measure, bucket, n)
        SELECT scope, 0, task_stand(state, hold, has_command, exit_status), -count(*)
        FROM old_task CROSS JOIN LATERAL unnest(scopes) AS scope GROUP BY 1, 3;
    ELSE
        INSERT INTO task_delta (scope, measure, bucket, n)
        SELECT scope, measure, bucket, sum(alike.n)
        FROM (
            SELECT scopes, task_stand(state, hold, has_command, exit_status) AS stand,
                   CASE WHEN state IN ('terminated', 'cancelled') THEN floor(entered_at / 10)::integer END AS ended,
                   sum(sign) AS n
            FROM (
                SELECT 1 AS sign, scopes, state, hold, has_command, exit_status, entered_at FROM new_task
                UNION ALL
                SELECT -1, scopes, state, hold, has_command, exit_status, entered_at FROM old_task
            ) AS changed GROUP BY 1, 2, 3
        ) AS alike
        CROSS JOIN LATERAL unnest(scopes) AS scope
        CROSS JOIN LATERAL (VALUES (0, stand), (1, ended)) AS figure (measure, bucket)
        WHERE bucket IS NOT NULL GROUP BY 1, 2, 3 HAVING sum(alike.n) <> 0;
    END IF;
    RETURN NULL;
END
$$;
