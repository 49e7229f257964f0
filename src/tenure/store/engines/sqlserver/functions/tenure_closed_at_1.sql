-- Returns the end of a session that is ended now: its deadline if that has passed, otherwise now, but at least one
-- microsecond after its start. `end_now` in deadlines.py computes the same. SQL Server inlines this function, like
-- tenure_deadline_1.
CREATE OR ALTER FUNCTION dbo.tenure_closed_at_1(@started_at datetime2(6), @deadline_at datetime2(6), @now datetime2(6))
RETURNS TABLE
AS
RETURN
SELECT CASE WHEN @deadline_at < n.closed_at THEN @deadline_at ELSE n.closed_at END AS closed_at
FROM (
    SELECT CASE WHEN @started_at < @now THEN @now ELSE DATEADD(MICROSECOND, 1, @started_at) END AS closed_at
) AS n;
