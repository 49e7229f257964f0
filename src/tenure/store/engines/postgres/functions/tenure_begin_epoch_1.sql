-- Begins the next epoch of a lease that is free and whose row the caller has locked. Writes the lease history, except
-- for the locks of jobs: the runs of a job are the history of its lock.
CREATE OR REPLACE FUNCTION tenure_begin_epoch_1(
    p_lease leases, p_holder text, p_attempt uuid, p_duration bigint, p_now timestamptz)
RETURNS leases
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_lease leases;
BEGIN
    IF p_lease.name NOT LIKE 'job:%' THEN
        UPDATE lease_history h SET ended_at = p_lease.expires_at, how = 'expired'
         WHERE h.name = p_lease.name AND h.epoch = p_lease.epoch AND h.ended_at IS NULL;
        INSERT INTO lease_history (name, epoch, holder, acquired_at)
        VALUES (p_lease.name, p_lease.epoch + 1, p_holder, p_now);
    END IF;
    UPDATE leases l
       SET holder = p_holder, epoch = p_lease.epoch + 1, attempt = p_attempt, acquired_at = p_now, renewed_at = p_now,
           expires_at = p_now + p_duration * interval '1 microsecond', released = false, resigned = false,
           reclaimed_at = CASE WHEN p_lease.released THEN l.reclaimed_at ELSE p_now END
     WHERE l.name = p_lease.name
    RETURNING * INTO v_lease;
    RETURN v_lease;
END
$$;
