-- The usage of a session that lived for so many microseconds, in millionths, rounded half to even. `meter.py` computes
-- the same in one line. Here no step may exceed 64 bits, so whole periods of 30 days and whole factors are taken out
-- first. The period is a variable: as a number in the text it would be a decimal, not a bigint, and dividing by it
-- would give decimals.
--
-- It reads nothing and returns once, so the server can inline it.
CREATE OR ALTER FUNCTION dbo.tenure_usage_1(@microseconds bigint, @factor bigint) RETURNS bigint
WITH SCHEMABINDING
AS
BEGIN
    DECLARE @period bigint = 2592000000000;
    DECLARE @rest bigint = @microseconds % @period;
    DECLARE @scaled bigint = @factor / 1000000 * @rest;
    DECLARE @small bigint = @scaled % 2592000 * 1000000 + @factor % 1000000 * @rest;
    DECLARE @whole bigint = @factor * (@microseconds / @period) + @scaled / 2592000 + @small / @period;
    -- Twice the rest, plus one if the result so far is odd: only then is a half rounded up.
    RETURN @whole + CASE WHEN 2 * (@small % @period) + @whole % 2 > @period THEN 1 ELSE 0 END;
END;
