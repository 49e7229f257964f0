-- Performs the second of the two steps that move the horizon of events, in a transaction after
-- tenure_begin_publishing_1. It waits for the session writes in progress, moves the horizon to `p_stamped_after`, and
-- returns the horizon.
--
-- Every session write acquires the cut lock before it reads the clock for its timestamps, and holds the lock until it
-- commits. A write that acquires the lock after this function has listed the holders reads the clock after the first
-- step, so its timestamp is after `p_stamped_after`. When the listed holders have finished, all writes with a timestamp
-- up to `p_stamped_after` are therefore committed, and no session whose deadline is at or before `p_stamped_after` can
-- be renewed.
--
-- The function lists the holders from pg_locks instead of acquiring the lock exclusively, so no session write waits for
-- this function. If a holder does not finish within a second, the function does not move the horizon.
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
