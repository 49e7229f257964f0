-- Releases a lease for its holder, and returns the lease. A repeated call after a lost answer finds the lease released
-- and returns it too. Raises an error if the lease has expired or belongs to another holder or epoch.
--
-- Order: lock the lease exclusively, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_release_lease_1(p_name text, p_holder text, p_epoch bigint)
RETURNS TABLE (now timestamptz, lease leases)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    SELECT * INTO lease FROM leases l
     WHERE l.name = p_name AND l.holder = p_holder AND l.epoch = p_epoch FOR UPDATE;
    now := tenure_now();
    IF lease.name IS NULL OR (NOT lease.released AND lease.expires_at <= now) THEN
        PERFORM tenure_lease_lost_1(p_name, p_holder, p_epoch);
    END IF;
    IF NOT lease.released THEN
        lease := tenure_end_epoch_1(lease, CASE WHEN lease.resigned THEN 'resigned' ELSE 'released' END, now);
    END IF;
    RETURN NEXT;
END
$$;
