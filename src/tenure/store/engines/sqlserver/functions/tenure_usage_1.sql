-- Returns the usage of a session that was live for @microseconds, in millionths, rounded half to even. @factor is in
-- millionths too. `usage_of` in meter.py computes the same with integers of any size. Here no step may exceed 64 bits,
-- so whole periods of 30 days and the integer part of the factor are computed separately. @period is 30 days in
-- microseconds; 2592000 is 30 days in seconds, that is, @period divided by a million. @period is a variable, because a
-- literal of this size has the type decimal, not bigint, and the division would return decimals.
--
-- The function reads no table and has a single RETURN, so SQL Server can inline it.
CREATE OR ALTER FUNCTION dbo.tenure_usage_1(@microseconds bigint, @factor bigint) RETURNS bigint
WITH SCHEMABINDING
AS
BEGIN
    DECLARE @period bigint = 2592000000000;
    DECLARE @rest bigint = @microseconds % @period;
    DECLARE @scaled bigint = @factor / 1000000 * @rest;
    DECLARE @small bigint = @scaled % 2592000 * 1000000 + @factor % 1000000 * @rest;
    DECLARE @whole bigint = @factor * (@microseconds / @period) + @scaled / 2592000 + @small / @period;
    -- Half to even: round up if twice the remainder, plus one if the result so far is odd, exceeds the divisor.
    RETURN @whole + CASE WHEN 2 * (@small % @period) + @whole % 2 > @period THEN 1 ELSE 0 END;
END;
