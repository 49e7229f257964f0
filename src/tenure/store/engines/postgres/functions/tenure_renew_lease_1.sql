-- Renews a lease for its holder, and returns the lease. Raises an error if this holder no longer holds the lease in
-- this epoch: an expired or resigned lease cannot be renewed.
--
-- Order: lock the lease FOR NO KEY UPDATE (which waits for an acquisition but not for fenced writes), read the clock,
-- write.
CREATE OR REPLACE FUNCTION tenure_renew_lease_1(p_name text, p_holder text, p_epoch bigint, p_duration bigint)
RETURNS TABLE (now timestamptz, lease leases)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM 1 FROM leases l WHERE l.name = p_name FOR NO KEY UPDATE;
    v_now := tenure_now();
    RETURN QUERY
        UPDATE leases l SET renewed_at = v_now, expires_at = v_now + p_duration * interval '1 microsecond'
         WHERE l.name = p_name AND l.holder = p_holder AND l.epoch = p_epoch AND NOT l.released AND NOT l.resigned
           AND l.expires_at > v_now
        RETURNING v_now, l;
    IF NOT FOUND THEN
        PERFORM tenure_lease_lost_1(p_name, p_holder, p_epoch);
    END IF;
END
$$;
