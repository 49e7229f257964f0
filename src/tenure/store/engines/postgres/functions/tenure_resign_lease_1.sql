-- Performs the second step of a resignation: ends the epoch of the lease, whichever instance holds it, and returns the
-- lease. Returns no row for a lease that was never held. Call tenure_mark_resigned_1, the first step, before this
-- function, with the same `p_actor`. If an instance acquired the lease after the first step, this function ends the new
-- epoch, and writes the audit entry or adds to the entry of the first step.
--
-- Order: lock the lease exclusively, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_resign_lease_1(p_name text, p_actor jsonb)
RETURNS TABLE (now timestamptz, lease leases)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    SELECT * INTO lease FROM leases l WHERE l.name = p_name AND l.epoch > 0 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    now := tenure_now();
    IF NOT lease.released AND lease.expires_at > now THEN
        IF NOT lease.resigned THEN
            PERFORM tenure_audit_1(
                now, p_actor, 'lease.resigned', p_name, format('holder %s, epoch %s', lease.holder, lease.epoch), 1);
        END IF;
        lease := tenure_end_epoch_1(lease, 'resigned', now);
    END IF;
    RETURN NEXT;
END
$$;
