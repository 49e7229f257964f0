-- Returns whether a job may run now. A run that was requested is due even if the job is paused. The next tick of a job
-- that is not paused is due when its time has come, or when the clock was stepped back behind ticks that are done: see
-- tenure_clock_is_behind_1.
--
-- After a failure, neither a requested run nor a tick is due until @retry_at, which is at most 60 s ahead
-- (RETRY_MAX_SECONDS in job_grid.py). A @retry_at further ahead was written before the clock was stepped back, and is
-- ignored. `due_in` in job_grid.py computes the same.
CREATE OR ALTER FUNCTION dbo.tenure_is_due_1(
    @next_run_at datetime2(6),
    @interval bigint,
    @retry_at datetime2(6),
    @requested_at datetime2(6),
    @paused bit,
    @now datetime2(6)
)
RETURNS bit
AS
BEGIN
    RETURN CASE
        WHEN @retry_at > @now AND @retry_at <= DATEADD(SECOND, 60, @now) THEN 0
        WHEN @requested_at IS NOT NULL THEN 1
        WHEN @paused = 1 THEN 0
        WHEN @next_run_at <= @now THEN 1
        ELSE dbo.tenure_clock_is_behind_1(@next_run_at, @interval, @now)
    END;
END;
