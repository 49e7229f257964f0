-- The first step of a resign, in a separate transaction: after it, every check of the epoch's fence fails. Without this
-- step, tenure_resign_lease_1, which waits for all fenced writes, could wait indefinitely for writes that overlap.
CREATE OR REPLACE FUNCTION tenure_mark_resigned_1(p_name text)
RETURNS void
LANGUAGE sql VOLATILE
AS $$
    UPDATE leases l SET resigned = true WHERE l.name = p_name AND NOT l.released AND l.expires_at > tenure_now()
$$;
