-- Returns whether the next tick of the job is more than two intervals ahead, because the clock was stepped back. If the
-- clock only goes forward, the next tick is at most one interval ahead. After a step back of less than one interval, it
-- is at most two intervals ahead. Then the function returns false, so that no tick runs twice. `is_clock_behind` in
-- job_grid.py computes the same.
CREATE OR REPLACE FUNCTION tenure_clock_is_behind_1(p_job jobs, p_now timestamptz)
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT (p_job).next_run_at > p_now + 2 * (p_job).interval_microseconds * interval '1 microsecond'
$$;
