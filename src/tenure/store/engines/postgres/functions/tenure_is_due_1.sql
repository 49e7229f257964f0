-- Returns whether a job may run now. A run that was requested is due even if the job is paused. A job that is not
-- paused is also due when the time of its next tick has come, or when the clock was stepped back behind ticks that are
-- done: see tenure_clock_is_behind_1.
--
-- In all these cases, a job that has failed first waits until `retry_at`, for at most 60 s (RETRY_MAX_SECONDS in
-- job_grid.py). A `retry_at` further ahead was written before the clock was stepped back, and is ignored. `due_in` in
-- job_grid.py decides in the same way.
CREATE OR REPLACE FUNCTION tenure_is_due_1(p_job jobs, p_now timestamptz)
RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT ((p_job).retry_at IS NULL OR (p_job).retry_at <= p_now OR (p_job).retry_at > p_now + interval '60 seconds')
       AND ((p_job).requested_at IS NOT NULL
            OR (NOT (p_job).paused AND ((p_job).next_run_at <= p_now OR tenure_clock_is_behind_1(p_job, p_now))))
$$;
