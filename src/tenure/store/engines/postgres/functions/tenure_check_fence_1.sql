-- Checks a fence: raises an error unless this holder holds the lease in this epoch. Until the transaction ends, no
-- other holder can acquire the lease. Fenced writes call this function first. An application may call it in its own
-- transactions.
--
-- The function locks the lease FOR KEY SHARE. So fenced writes do not wait for each other or for a renewal, which locks
-- the lease FOR NO KEY UPDATE. A transaction that begins or ends an epoch locks the lease FOR UPDATE, and so waits for
-- all fenced writes (tenure_lock_lease_1).
--
-- The function runs with the search_path of its migration, because the caller's search_path may not contain Tenure's
-- schema.
CREATE OR REPLACE FUNCTION tenure_check_fence_1(p_name text, p_holder text, p_epoch bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM 1 FROM leases l WHERE l.name = p_name AND l.holder = p_holder AND l.epoch = p_epoch FOR KEY SHARE;
    -- This is a separate statement, because it must see changes that were committed while the statement above waited
    -- for its lock.
    IF NOT FOUND OR NOT EXISTS (
        SELECT FROM leases l
         WHERE l.name = p_name AND NOT l.released AND NOT l.resigned AND l.expires_at > tenure_now())
    THEN
        PERFORM tenure_lease_lost_1(p_name, p_holder, p_epoch);
    END IF;
END
$$;
