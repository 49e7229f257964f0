-- Second step of moving the horizon of events, in a transaction after tenure_begin_publishing_1: waits for the session
-- writes in progress, moves the horizon to `p_stamped_after`, and returns the horizon.
--
-- Every session write takes the cut lock, shared, before it reads the clock, and holds it until it is committed. A
-- write that takes the lock after this function has looked at its holders reads the clock after the first step, so it
-- is stamped later. So when the present holders are gone, all writes that are stamped up to `p_stamped_after` are
-- committed, and no session whose deadline is at or before it can be renewed any more.
--
-- The function reads the holders from pg_locks instead of taking the lock exclusively: no session write waits for it. If
-- a holder does not end within a second, the horizon stays where it is.
CREATE OR REPLACE FUNCTION tenure_finish_publishing_1(p_stamped_after timestamptz) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_gives_up_at timestamptz := clock_timestamp() + interval '1 second';
    v_holders text[];
    v_horizon timestamptz;
BEGIN
    LOOP
        v_holders := ARRAY(
            SELECT l.virtualtransaction FROM pg_locks l
             WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1
               AND l.classid = (7305808868231127649 >> 32)::oid
               AND l.objid = (7305808868231127649 & 4294967295)::oid
               AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
               AND (v_holders IS NULL OR l.virtualtransaction = ANY (v_holders)));
        EXIT WHEN cardinality(v_holders) = 0;
        IF clock_timestamp() > v_gives_up_at THEN
            SELECT i.published_at INTO v_horizon FROM installation i;
            RETURN v_horizon;
        END IF;
        PERFORM pg_sleep(0.001);
    END LOOP;
    UPDATE installation i SET published_at = greatest(i.published_at, p_stamped_after)
    RETURNING i.published_at INTO v_horizon;
    RETURN v_horizon;
END
$$;
