-- Locks a lease's row, and makes one if there is none yet. Epoch 0 was never held.
--
-- FOR UPDATE, as everything that begins or ends an epoch takes it, waits for every write that shows a fence of the epoch
-- before (they hold FOR KEY SHARE): none of them can be committed after this. A renewal is a plain update: fences and
-- renewals do not wait for each other.
CREATE FUNCTION tenure_lock_lease_1(p_name text)
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

-- statement-break

-- Begins the next epoch of a lease whose row is locked and which is free. Of all leases but job locks, whose runs tell it,
-- the history is kept.
CREATE FUNCTION tenure_begin_epoch_1(
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
           expires_at = p_now + p_duration * interval '1 microsecond', released = false, resigned = false
     WHERE l.name = p_lease.name
    RETURNING * INTO v_lease;
    RETURN v_lease;
END
$$;

-- statement-break

-- The lease as it is now: taken, if it was free or this very attempt took it and the answer was lost. `reclaimed`: its last
-- holder let it run out.
CREATE FUNCTION tenure_acquire_lease_1(p_name text, p_holder text, p_attempt uuid, p_duration bigint)
RETURNS TABLE (
    taken boolean, reclaimed boolean, now timestamptz, name text, holder text, epoch bigint, acquired_at timestamptz,
    renewed_at timestamptz, expires_at timestamptz, released boolean, resigned boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_lease leases;
    v_now timestamptz;
    v_taken boolean;
    v_reclaimed boolean := false;
BEGIN
    v_lease := tenure_lock_lease_1(p_name);
    v_now := tenure_now();
    v_taken := v_lease.attempt = p_attempt AND NOT v_lease.released AND v_lease.expires_at > v_now;
    IF v_lease.released OR v_lease.expires_at <= v_now THEN
        v_reclaimed := NOT v_lease.released;
        v_lease := tenure_begin_epoch_1(v_lease, p_holder, p_attempt, p_duration, v_now);
        v_taken := true;
    END IF;
    RETURN QUERY SELECT v_taken, v_reclaimed, v_now, v_lease.name::text, v_lease.holder::text, v_lease.epoch,
                        v_lease.acquired_at, v_lease.renewed_at, v_lease.expires_at, v_lease.released, v_lease.resigned;
END
$$;

-- statement-break

-- What an application, too, calls first in a transaction of its own that only the holder may commit. A lease that is lost
-- is an error, so that nobody can overlook it.
CREATE FUNCTION tenure_check_fence_1(p_name text, p_holder text, p_epoch bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path FROM CURRENT
AS $$
BEGIN
    PERFORM 1 FROM leases l WHERE l.name = p_name AND l.holder = p_holder AND l.epoch = p_epoch FOR KEY SHARE;
    -- In a statement of its own: it must see what was committed while this waited for the lock.
    IF NOT FOUND OR NOT EXISTS (
        SELECT FROM leases l
         WHERE l.name = p_name AND NOT l.released AND NOT l.resigned AND l.expires_at > tenure_now())
    THEN
        RAISE EXCEPTION 'tenure: % does not hold the lease % in epoch %', p_holder, p_name, p_epoch USING ERRCODE = 'TL001';
    END IF;
END
$$;

-- statement-break

CREATE FUNCTION tenure_renew_lease_1(p_name text, p_holder text, p_epoch bigint, p_duration bigint)
RETURNS TABLE (
    now timestamptz, name text, holder text, epoch bigint, acquired_at timestamptz, renewed_at timestamptz,
    expires_at timestamptz, released boolean, resigned boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    -- A lock that excludes whoever acquires, and not those who show a fence.
    PERFORM 1 FROM leases l WHERE l.name = p_name FOR NO KEY UPDATE;
    v_now := tenure_now();
    RETURN QUERY
        UPDATE leases l SET renewed_at = v_now, expires_at = v_now + p_duration * interval '1 microsecond'
         WHERE l.name = p_name AND l.holder = p_holder AND l.epoch = p_epoch AND NOT l.released AND NOT l.resigned
           AND l.expires_at > v_now
        RETURNING v_now, l.name::text, l.holder::text, l.epoch, l.acquired_at, l.renewed_at, l.expires_at, l.released,
                  l.resigned;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'tenure: % does not hold the lease % in epoch %', p_holder, p_name, p_epoch USING ERRCODE = 'TL001';
    END IF;
END
$$;

-- statement-break

-- Ends a lease whose row is locked: now, or when it ran out. Row and epoch stay.
CREATE FUNCTION tenure_end_epoch_1(p_lease leases, p_how text, p_now timestamptz)
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
    -- Heard by those who wait for it, once this is committed.
    PERFORM pg_notify('tenure', 'leases');
    RETURN v_lease;
END
$$;

-- statement-break

-- By its holder. A repetition after a lost answer finds the lease released.
CREATE FUNCTION tenure_release_lease_1(p_name text, p_holder text, p_epoch bigint)
RETURNS TABLE (
    now timestamptz, name text, holder text, epoch bigint, acquired_at timestamptz, renewed_at timestamptz,
    expires_at timestamptz, released boolean, resigned boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_lease leases;
    v_now timestamptz;
BEGIN
    SELECT * INTO v_lease FROM leases l
     WHERE l.name = p_name AND l.holder = p_holder AND l.epoch = p_epoch FOR UPDATE;
    v_now := tenure_now();
    IF v_lease.name IS NULL OR (NOT v_lease.released AND v_lease.expires_at <= v_now) THEN
        RAISE EXCEPTION 'tenure: % does not hold the lease % in epoch %', p_holder, p_name, p_epoch USING ERRCODE = 'TL001';
    END IF;
    IF NOT v_lease.released THEN
        v_lease := tenure_end_epoch_1(v_lease, CASE WHEN v_lease.resigned THEN 'resigned' ELSE 'released' END, v_now);
    END IF;
    RETURN QUERY SELECT v_now, v_lease.name::text, v_lease.holder::text, v_lease.epoch, v_lease.acquired_at,
                        v_lease.renewed_at, v_lease.expires_at, v_lease.released, v_lease.resigned;
END
$$;

-- statement-break

-- On somebody's request, whoever holds it. First this, in a transaction of its own: from then on no fence of the epoch holds.
-- Fenced writes that overlap would otherwise keep the end of the epoch waiting for ever, since each may pass those who wait.
CREATE FUNCTION tenure_mark_resigned_1(p_name text)
RETURNS void
LANGUAGE sql VOLATILE
AS $$
    UPDATE leases l SET resigned = true WHERE l.name = p_name AND NOT l.released AND l.expires_at > tenure_now()
$$;

-- statement-break

-- Then this. Nothing comes back of a lease that nobody ever held.
CREATE FUNCTION tenure_resign_lease_1(p_name text)
RETURNS TABLE (
    now timestamptz, name text, holder text, epoch bigint, acquired_at timestamptz, renewed_at timestamptz,
    expires_at timestamptz, released boolean, resigned boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_lease leases;
    v_now timestamptz;
BEGIN
    SELECT * INTO v_lease FROM leases l WHERE l.name = p_name AND l.epoch > 0 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_now := tenure_now();
    IF NOT v_lease.released AND v_lease.expires_at > v_now THEN
        v_lease := tenure_end_epoch_1(v_lease, 'resigned', v_now);
    END IF;
    RETURN QUERY SELECT v_now, v_lease.name::text, v_lease.holder::text, v_lease.epoch, v_lease.acquired_at,
                        v_lease.renewed_at, v_lease.expires_at, v_lease.released, v_lease.resigned;
END
$$;
