-- Imports live sessions of another service, and returns an outcome for each session:
--
-- - `imported`: the session was inserted or, if `p_writes` is false, would be inserted
-- - `existing`: a session with this id is live
-- - `over`: a session with this id has ended
-- - `ended`: the term of the session is over
-- - `tenant-mismatch`: the capacity is bound to another tenant
-- - `conflict`: the key (capacity and user) has another session, whose end is not recorded or is later than now
--
-- If `p_writes` is false, the function writes nothing.
--
-- An imported session starts at the current time, like any new session, so that windows and events up to now do not
-- change. `imported_start_at` stores its start in the other service. An import may take more seats than the capacity
-- has. It sets the slack of the capacity to 0, so that the next open counts the seats.
--
-- Order: acquire the cut lock exclusively (so that no session is written meanwhile), read the clock, read, write.
CREATE OR REPLACE FUNCTION tenure_import_sessions_1(
    p_session uuid[], p_tenant uuid[], p_user uuid[], p_capacity uuid[], p_kind smallint[],
    p_started_at timestamptz[], p_ends_at timestamptz[], p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_writes boolean, p_draft jsonb
) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_outcomes text[];
    v_imported int;
BEGIN
    PERFORM tenure_lock_cut_exclusive_1();
    v_now := tenure_write_now();
    v_outcomes := ARRAY(
        SELECT CASE
                   WHEN EXISTS (SELECT 1 FROM sessions s
                                 WHERE s.session_id = w.session_id
                                   AND s.closed_at IS NULL AND s.deadline_at > v_now)
                        THEN 'existing'
                   WHEN EXISTS (SELECT 1 FROM sessions s WHERE s.session_id = w.session_id) THEN 'over'
                   WHEN w.ends_at <= v_now THEN 'ended'
                   WHEN EXISTS (SELECT 1 FROM capacities c
                                 WHERE c.capacity_id = w.capacity_id AND c.tenant_object_id <> w.tenant_object_id)
                        THEN 'tenant-mismatch'
                   WHEN EXISTS (SELECT 1 FROM sessions s
                                 WHERE s.capacity_id = w.capacity_id AND s.user_object_id = w.user_object_id
                                   AND s.closed_at IS NULL)
                        THEN 'conflict'
                   WHEN EXISTS (SELECT 1 FROM sessions s
                                 WHERE s.closed_at > v_now AND s.capacity_id = w.capacity_id
                                   AND s.user_object_id = w.user_object_id)
                        THEN 'conflict'
                   ELSE 'imported' END
          FROM unnest(p_session, p_tenant, p_user, p_capacity, p_ends_at) WITH ORDINALITY
               AS w(session_id, tenant_object_id, user_object_id, capacity_id, ends_at, position)
         ORDER BY w.position);
    IF p_writes THEN
        INSERT INTO sessions (
            session_id, tenant_object_id, user_object_id, capacity_id, started_at, imported_start_at, term_ends_at,
            deadline_at, check_at, last_heartbeat_at,
            lease_microseconds, idle_microseconds, heartbeat_microseconds, kind, state, lapse_reason)
        SELECT w.session_id, w.tenant_object_id, w.user_object_id, w.capacity_id, v_now, w.started_at, w.ends_at,
               tenure_deadline_1(w.ends_at, v_now, w.lease, v_now, w.idle),
               tenure_deadline_1(w.ends_at, v_now, w.lease, v_now, w.idle),
               v_now, w.lease, w.idle, w.heartbeat, w.kind, 'created',
               tenure_lapse_reason_1(w.ends_at, v_now, w.lease, v_now, w.idle)
          FROM unnest(p_session, p_tenant, p_user, p_capacity, p_kind, p_started_at, p_ends_at, p_lease, p_heartbeat,
                      p_idle, v_outcomes)
               AS w(session_id, tenant_object_id, user_object_id, capacity_id, kind, started_at, ends_at, lease,
                    heartbeat, idle, outcome)
         WHERE w.outcome = 'imported';
        GET DIAGNOSTICS v_imported = ROW_COUNT;
        IF v_imported > 0 THEN
            UPDATE capacities SET slack = 0 WHERE capacity_id = ANY (p_capacity) AND slack > 0;
            PERFORM tenure_audit_1(
                v_now, p_draft, p_draft ->> 'action', p_draft ->> 'target', p_draft ->> 'detail', v_imported);
        END IF;
    END IF;
    RETURN QUERY SELECT unnest(v_outcomes);
END
$$;
