-- Acquires a lease if it is free, and returns its current row. `taken` is true if this call acquired the lease, or if
-- the lease is still held in the epoch that an earlier call with the same `p_attempt` began: the caller repeats a call
-- whose response was lost. `reclaimed` means that this call acquired the lease after the last holder let it expire
-- instead of releasing it.
--
-- Order: lock the lease exclusively, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_acquire_lease_1(p_name text, p_holder text, p_attempt uuid, p_duration bigint)
RETURNS TABLE (taken boolean, reclaimed boolean, now timestamptz, lease leases)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    lease := tenure_lock_lease_1(p_name);
    now := tenure_now();
    taken := lease.attempt = p_attempt AND NOT lease.released AND lease.expires_at > now;
    reclaimed := false;
    IF lease.released OR lease.expires_at <= now THEN
        reclaimed := NOT lease.released;
        lease := tenure_begin_epoch_1(lease, p_holder, p_attempt, p_duration, now);
        taken := true;
    END IF;
    RETURN NEXT;
END
$$;
