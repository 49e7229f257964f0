-- Heartbeats: renews live sessions and records the lapse of those whose deadline has passed. `found` is `live`, `over`,
-- or `held` for a row that another transaction holds; the caller retries a held one. `recorded` has a
-- value if this call recorded the end: the user, tenant and capacity of the session. An unknown id returns no row, and
-- neither does one outside the scope of its caller: `p_tenant` is NULL if no caller of the batch is bound to a tenant
-- (see tenure_in_scope_1).
--
-- A clock that was stepped back never shortens a deadline. Renewing changes no indexed column, so PostgreSQL rewrites
-- the row within its page (a HOT update).
--
-- Order: the cut lock; the rows that no other transaction holds; the clock; the writes.
CREATE OR REPLACE FUNCTION tenure_heartbeat_1(
    p_session uuid[], p_active boolean[], p_tenant uuid[], p_user uuid[])
RETURNS TABLE (
    "position" int, found text, state text, deadline_at timestamptz, heartbeat_microseconds bigint, close_reason text,
    recorded uuid[])
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_locked uuid[];
    v_now timestamptz;
    v_renewed int;
BEGIN
    IF p_tenant IS NOT NULL THEN
        p_session := tenure_in_scope_1(p_session, p_tenant, p_user);
    END IF;
    PERFORM tenure_lock_cut_shared_1();
    v_locked := tenure_lock_sessions_1(p_session);
    v_now := tenure_write_now();
    RETURN QUERY
        -- plan: renew
        UPDATE sessions s
           SET last_heartbeat_at = greatest(s.last_heartbeat_at, v_now),
               last_activity_at = greatest(s.last_activity_at, CASE WHEN b.active THEN v_now END),
               state = CASE WHEN b.active THEN 'active' ELSE s.state END,
               deadline_at = tenure_deadline_1(
                   s.term_ends_at, greatest(s.last_heartbeat_at, v_now), s.lease_microseconds,
                   greatest(s.last_activity_at, CASE WHEN b.active THEN v_now END), s.idle_microseconds),
               lapse_reason = tenure_lapse_reason_1(
                   s.term_ends_at, greatest(s.last_heartbeat_at, v_now), s.lease_microseconds,
                   greatest(s.last_activity_at, CASE WHEN b.active THEN v_now END), s.idle_microseconds),
               modified_at = greatest(s.modified_at, v_now)
          FROM unnest(p_session, p_active) WITH ORDINALITY AS b(session_id, active, position)
         WHERE s.session_id = b.session_id AND s.session_id = ANY (v_locked) AND s.deadline_at > v_now
        RETURNING b.position::int, 'live', s.state::text, s.deadline_at, s.heartbeat_microseconds, NULL::text, NULL::uuid[]
        -- plan end
    ;
    GET DIAGNOSTICS v_renewed = ROW_COUNT;
    IF v_renewed < cardinality(v_locked) THEN
        RETURN QUERY
            SELECT array_position(p_session, c.session_id), 'over', c.state::text, c.deadline_at,
                   c.heartbeat_microseconds, c.close_reason::text,
                   ARRAY[c.user_object_id, c.tenant_object_id, c.capacity_id]
              FROM tenure_close_lapsed_1(v_locked, v_now) AS c;
    END IF;
    IF cardinality(v_locked) < cardinality(p_session) THEN
        RETURN QUERY
            SELECT b.position::int, CASE WHEN s.closed_at IS NULL THEN 'held' ELSE 'over' END, s.state::text,
                   s.deadline_at, s.heartbeat_microseconds, s.close_reason::text, NULL::uuid[]
              FROM unnest(p_session) WITH ORDINALITY AS b(session_id, position)
              JOIN sessions s ON s.session_id = b.session_id
             WHERE NOT b.session_id = ANY (v_locked);
    END IF;
END
$$;
