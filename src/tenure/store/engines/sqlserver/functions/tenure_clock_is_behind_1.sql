-- Whether the clock was stepped back behind ticks that are done: the next tick of the job lies more than two intervals
-- ahead. A clock that only goes forward leaves it one interval ahead at most, and a step back of less than an interval
-- two at most, so that such a step runs no tick twice. `is_clock_behind` in job_grid.py computes the same.
CREATE OR ALTER FUNCTION dbo.tenure_clock_is_behind_1(@next_run_at datetime2(6), @interval bigint, @now datetime2(6))
RETURNS bit
AS
BEGIN
    RETURN CASE WHEN DATEDIFF_BIG(MICROSECOND, @now, @next_run_at) > 2 * @interval THEN 1 ELSE 0 END;
END;
