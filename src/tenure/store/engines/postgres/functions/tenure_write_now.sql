-- The clock of a session write: never before the last cut, even if the database's clock was stepped back.
--
-- Call it after the last lock and the last read. An earlier call could lead to sessions that overlap, and to writes
-- whose time belongs to a window that is already cut.
CREATE OR REPLACE FUNCTION tenure_write_now() RETURNS timestamptz
LANGUAGE sql VOLATILE
AS 'SELECT greatest(tenure_now(), (SELECT last_cut_at FROM installation))';
