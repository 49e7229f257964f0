-- Ends a session, starts another one in its place, and returns the new session. A live session ends as `UPGRADED`, and
-- its successor starts at the instant of this end, with the limits of the old session as defaults. A lapsed session
-- ends at its deadline, and its successor starts now with the `p_default_…` limits as defaults. If the old session has
-- had a stream, all instances are notified of the end.
--
-- The caller has locked the old row and holds the cut lock.
CREATE OR REPLACE FUNCTION tenure_replace_session_1(
    p_old sessions, p_now timestamptz,
    p_session uuid, p_tenant uuid, p_kind smallint, p_lease bigint, p_heartbeat bigint, p_idle bigint,
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS sessions
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_live boolean := p_old.deadline_at > p_now;
    v_ended_at timestamptz := tenure_closed_at_1(p_old.started_at, p_old.deadline_at, p_now);
    v_new sessions;
BEGIN
    UPDATE sessions
       SET state = 'closed', check_at = NULL, closed_at = v_ended_at, modified_at = NULL,
           close_reason = CASE WHEN v_live THEN 'UPGRADED' ELSE tenure_lapse_text_1(p_old.lapse_reason) END
     WHERE session_id = p_old.session_id;
    IF p_old.attachment > 0 THEN
        PERFORM tenure_announce_ends_1(ARRAY[p_old.session_id]);
    END IF;

    IF v_live THEN
        v_new.previous_session_id := p_old.session_id;
        p_default_lease := p_old.lease_microseconds;
        p_default_heartbeat := p_old.heartbeat_microseconds;
        p_default_idle := p_old.idle_microseconds;
    END IF;
    v_new.started_at := greatest(p_now, v_ended_at);
    v_new.term_ends_at := v_new.started_at + p_term * interval '1 microsecond';
    v_new.lease_microseconds := coalesce(p_lease, p_default_lease);
    v_new.heartbeat_microseconds := CASE WHEN p_lease IS NULL THEN p_default_heartbeat ELSE p_heartbeat END;
    v_new.idle_microseconds := coalesce(p_idle, p_default_idle);
    v_new.deadline_at := tenure_deadline_1(
        v_new.term_ends_at, v_new.started_at, v_new.lease_microseconds, v_new.started_at, v_new.idle_microseconds);
    v_new.lapse_reason := tenure_lapse_reason_1(
        v_new.term_ends_at, v_new.started_at, v_new.lease_microseconds, v_new.started_at, v_new.idle_microseconds);

    INSERT INTO sessions (
        session_id, tenant_object_id, user_object_id, capacity_id, previous_session_id, started_at, term_ends_at,
        deadline_at, check_at, last_heartbeat_at,
        lease_microseconds, idle_microseconds, heartbeat_microseconds, kind, state, lapse_reason)
    VALUES (
        p_session, p_tenant, p_old.user_object_id, p_old.capacity_id, v_new.previous_session_id,
        v_new.started_at, v_new.term_ends_at,
        v_new.deadline_at, v_new.deadline_at, v_new.started_at,
        v_new.lease_microseconds, v_new.idle_microseconds, v_new.heartbeat_microseconds, p_kind, 'created',
        v_new.lapse_reason)
    RETURNING * INTO v_new;
    RETURN v_new;
END
$$;
