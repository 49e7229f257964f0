-- Registers the jobs of an instance. A new job gets a row. For an existing job, a changed interval or lock timeout
-- takes effect at once; the next run may become earlier, but never later. `p_paused` applies to new rows only.
CREATE OR REPLACE FUNCTION tenure_register_jobs_1(
    p_name text[], p_interval bigint[], p_lock_timeout bigint[], p_paused boolean[])
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz := tenure_now();
BEGIN
    INSERT INTO jobs AS j (
        name, interval_microseconds, lock_timeout_microseconds, next_run_at, run_count, failures_in_a_row, paused)
    SELECT r.name, r.interval, r.lock_timeout, tenure_grid_after_1(r.interval, v_now), 0, 0, r.paused
      FROM unnest(p_name, p_interval, p_lock_timeout, p_paused) AS r(name, interval, lock_timeout, paused)
     -- All instances lock the rows in the same order, so that instances that start together do not deadlock.
     ORDER BY r.name
    ON CONFLICT (name) DO UPDATE
       SET interval_microseconds = excluded.interval_microseconds,
           lock_timeout_microseconds = excluded.lock_timeout_microseconds,
           next_run_at = CASE WHEN j.interval_microseconds = excluded.interval_microseconds THEN j.next_run_at
                              ELSE least(j.next_run_at, excluded.next_run_at) END
     WHERE (j.interval_microseconds, j.lock_timeout_microseconds)
           <> (excluded.interval_microseconds, excluded.lock_timeout_microseconds);
END
$$;
