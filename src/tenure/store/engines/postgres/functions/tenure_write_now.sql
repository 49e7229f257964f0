-- Returns the timestamp for a session write: the current time, but never before the last cut, and always after the
-- horizon of events, even if the database's clock was stepped back.
--
-- Call it after the last lock and the last read. An earlier call could lead to sessions that overlap, and to timestamps
-- in a window that is already cut or before the horizon.
CREATE OR REPLACE FUNCTION tenure_write_now() RETURNS timestamptz
LANGUAGE sql VOLATILE
AS $$
    SELECT greatest(tenure_now(), i.last_cut_at, i.stamped_after + interval '1 microsecond') FROM installation i
$$;
