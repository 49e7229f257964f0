-- Returns whether the clock was stepped back behind ticks that are done: the next tick of the job then lies more than
-- two intervals ahead. If the clock only goes forward, the next tick is at most one interval ahead. After a step back
-- of less than one interval, the next tick is at most two intervals ahead, so no tick runs twice after such a step.
-- `is_clock_behind` in job_grid.py computes the same.
CREATE OR REPLACE FUNCTION tenure_clock_is_behind_1(p_job jobs, p_now timestamptz)
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT (p_job).next_run_at > p_now + 2 * (p_job).interval_microseconds * interval '1 microsecond'
$$;
