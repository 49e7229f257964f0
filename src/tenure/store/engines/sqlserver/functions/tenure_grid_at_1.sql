-- Returns the last tick at or before an instant. Ticks are the multiples of the interval since 1970-01-01T00:00Z.
-- `grid_at` in job_grid.py computes the same.
CREATE OR ALTER FUNCTION dbo.tenure_grid_at_1(@interval bigint, @at datetime2(6)) RETURNS datetime2(6)
AS
BEGIN
    DECLARE @since bigint = DATEDIFF_BIG(MICROSECOND, CAST('1970-01-01' AS datetime2(6)), @at);
    RETURN dbo.tenure_add_microseconds_1(@at, -(@since % @interval));
END;
