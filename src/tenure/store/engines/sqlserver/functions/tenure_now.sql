-- Returns the time of the database's clock. No other routine reads the clock, so tests can replace this function to
-- move time.
CREATE OR ALTER FUNCTION dbo.tenure_now() RETURNS datetime2(6)
AS
BEGIN
    RETURN CAST(SYSUTCDATETIME() AS datetime2(6));
END;
