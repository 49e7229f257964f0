-- Locks the row of a lease and returns the row. If there is no row, inserts one with epoch 0: at epoch 0, the lease has
-- never been held.
--
-- Every transaction that begins or ends an epoch takes the lock FOR UPDATE. It waits for the fenced writes in progress,
-- which hold FOR KEY SHARE, so no fenced write of the current epoch can commit after the lock is granted. A renewal
-- takes FOR NO KEY UPDATE, so fenced writes and renewals do not wait for each other.
CREATE OR REPLACE FUNCTION tenure_lock_lease_1(p_name text)
RETURNS leases
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_lease leases;
    v_now timestamptz;
BEGIN
    SELECT * INTO v_lease FROM leases l WHERE l.name = p_name FOR UPDATE;
    IF NOT FOUND THEN
        v_now := tenure_now();
        INSERT INTO leases (name, holder, epoch, attempt, acquired_at, renewed_at, expires_at, released, resigned)
        VALUES (p_name, '', 0, '00000000-0000-0000-0000-000000000000', v_now, v_now, v_now, true, false)
        ON CONFLICT DO NOTHING;
        SELECT * INTO v_lease FROM leases l WHERE l.name = p_name FOR UPDATE;
    END IF;
    RETURN v_lease;
END
$$;
