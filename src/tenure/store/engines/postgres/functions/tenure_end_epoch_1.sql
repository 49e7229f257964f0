-- Ends the epoch of a lease now, as `released` or `resigned` (`p_how`). The caller has locked the row of the lease. The
-- row stays and keeps its epoch.
CREATE OR REPLACE FUNCTION tenure_end_epoch_1(p_lease leases, p_how text, p_now timestamptz)
RETURNS leases
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_lease leases;
BEGIN
    UPDATE lease_history h SET ended_at = p_now, how = p_how
     WHERE h.name = p_lease.name AND h.epoch = p_lease.epoch AND h.ended_at IS NULL;
    UPDATE leases l SET expires_at = p_now, released = true, resigned = p_how = 'resigned' WHERE l.name = p_lease.name
    RETURNING * INTO v_lease;
    -- PostgreSQL sends the notification when this transaction commits. All instances then read the board, which shows
    -- that the lease is free.
    PERFORM pg_notify('tenure', 'leases');
    RETURN v_lease;
END
$$;
