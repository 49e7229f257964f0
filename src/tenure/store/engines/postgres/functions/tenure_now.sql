-- Returns the time of the database's clock. No other function reads the clock, so tests can replace this function to
-- move time.
CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS 'SELECT clock_timestamp()';
