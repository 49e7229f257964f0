-- Returns the time of the database's clock. No other function reads the clock (except tenure_finish_publishing_1, to
-- limit its wait), so tests can replace this function to move time.
CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS 'SELECT clock_timestamp()';
