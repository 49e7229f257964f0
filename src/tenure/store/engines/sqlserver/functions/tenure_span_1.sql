-- Returns the end of the term, the deadline and the lapse reason of a session that begins at @started_at. The limits
-- are in microseconds. @lease and @idle are NULL if the session has no such limit. `span_of` in deadlines.py computes
-- the same.
CREATE OR ALTER FUNCTION dbo.tenure_span_1(@started_at datetime2(6), @term bigint, @lease bigint, @idle bigint)
RETURNS TABLE
AS
RETURN
SELECT e.term_ends_at, d.lapse_reason, d.deadline_at
FROM (
    SELECT DATEADD(MICROSECOND, @term % 1000000, DATEADD(SECOND, @term / 1000000, @started_at)) AS term_ends_at
) AS e
CROSS APPLY dbo.tenure_deadline_1(e.term_ends_at, @started_at, @lease, @started_at, @idle) AS d;
