-- Inserts or renews the row of an instance, and returns the stored start of the instance. A new row stores `p_started`,
-- or the current time if `p_started` is NULL.
--
-- A row that is marked as stopped does not change again, because an earlier call may arrive after the call that marked
-- it. Only the instance itself writes its row, so two concurrent writes can only be a call and its own retry.
CREATE OR REPLACE FUNCTION tenure_save_instance_1(
    p_instance text, p_holder text, p_host text, p_pid int, p_worker int, p_version text,
    p_executor_lease text, p_started timestamptz, p_stopped boolean)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_started timestamptz;
BEGIN
    PERFORM 1 FROM instances i WHERE i.instance = p_instance FOR NO KEY UPDATE;
    v_now := tenure_now();
    INSERT INTO instances AS i (
        instance, holder, host, pid, worker, version, executor_lease, started_at, last_seen_at, stopped_at)
    VALUES (p_instance, p_holder, p_host, p_pid, p_worker, p_version, p_executor_lease, coalesce(p_started, v_now), v_now,
            CASE WHEN p_stopped THEN v_now END)
    ON CONFLICT (instance) DO UPDATE SET last_seen_at = excluded.last_seen_at, stopped_at = excluded.stopped_at
     WHERE i.stopped_at IS NULL;
    SELECT i.started_at INTO v_started FROM instances i WHERE i.instance = p_instance;
    RETURN v_started;
END
$$;
