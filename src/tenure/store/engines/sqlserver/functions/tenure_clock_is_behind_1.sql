-- Returns whether the next tick of the job is more than two intervals ahead, because the clock was stepped back. If the
-- clock only goes forward, the next tick is at most one interval ahead. After a step back of less than one interval, it
-- is at most two intervals ahead. In both cases the function returns 0, so that no tick runs twice. `is_clock_behind`
-- in job_grid.py computes the same.
CREATE OR ALTER FUNCTION dbo.tenure_clock_is_behind_1(@next_run_at datetime2(6), @interval bigint, @now datetime2(6))
RETURNS bit
AS
BEGIN
    RETURN CASE WHEN DATEDIFF_BIG(MICROSECOND, @now, @next_run_at) > 2 * @interval THEN 1 ELSE 0 END;
END;
