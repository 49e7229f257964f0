-- Returns the timestamp for a session write: the current time, but never before the last cut, and always after the
-- horizon of events, even if the database's clock was stepped back.
--
-- A write calls this function after it has taken its locks and read its rows. If the write called the function earlier,
-- sessions could overlap, and the timestamp could be before the last cut or before the horizon.
CREATE OR REPLACE FUNCTION tenure_write_now() RETURNS timestamptz
LANGUAGE sql VOLATILE
AS $$
    SELECT greatest(tenure_now(), i.last_cut_at, i.stamped_after + interval '1 microsecond') FROM installation i
$$;
