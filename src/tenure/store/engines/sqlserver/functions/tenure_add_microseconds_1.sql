-- An instant plus so many microseconds, which may be negative. DATEADD takes an int, too small for an hour of them.
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
