-- Returns an instant plus a number of microseconds, which may be negative. DATEADD cannot do this in one step, because
-- it takes an int, and an hour of microseconds exceeds an int.
CREATE OR ALTER FUNCTION dbo.tenure_add_microseconds_1(@at datetime2(6), @microseconds bigint) RETURNS datetime2(6)
AS
BEGIN
    DECLARE @seconds bigint = @microseconds / 1000000;
    RETURN DATEADD(
        MICROSECOND,
        @microseconds % 1000000,
        DATEADD(SECOND, @seconds % 86400, DATEADD(DAY, @seconds / 86400, @at))
    );
END;
