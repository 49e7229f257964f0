-- Returns the time of the database's clock. All other functions call this function instead of reading the clock, so
-- tests can replace it to move time. Only tenure_finish_publishing_1 also reads the clock itself, to limit its wait.
CREATE OR REPLACE FUNCTION tenure_now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS 'SELECT clock_timestamp()';
