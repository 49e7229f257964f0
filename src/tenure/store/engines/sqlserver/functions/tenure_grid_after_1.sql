-- Returns the first tick after an instant. `grid_after` in job_grid.py computes the same.
CREATE OR ALTER FUNCTION dbo.tenure_grid_after_1(@interval bigint, @at datetime2(6)) RETURNS datetime2(6)
AS
BEGIN
    RETURN dbo.tenure_add_microseconds_1(dbo.tenure_grid_at_1(@interval, @at), @interval);
END;
