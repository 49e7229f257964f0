-- Processes heartbeats: renews live sessions, and records the ends of sessions whose deadline has passed. `p_active`
-- lists the sessions whose heartbeat reports activity; it is NULL if none does. `found` is `live`, `over`, or `held`
-- for a row that another transaction holds; the caller retries a held row. If this call recorded the end, `recorded` is
-- the user, tenant and capacity of the session; otherwise it is NULL. An id that is unknown, or outside the scope of
-- its caller, is in no row of the result. `p_tenant` is NULL if no caller of the batch is bound to a tenant (see
-- tenure_in_scope_1).
--
-- Renewed sessions with the same values share one result row, because most sessions of a batch have the same lease, and
-- so the same new deadline. `sessions` lists the session ids of a result row, as an array in text form; NULL stands for
-- all of `p_session`.
--
-- A clock that was stepped back never shortens a deadline. Renewing changes no indexed column, so PostgreSQL can write
-- the new version of the row without changing an index (a HOT update).
--
-- Order: acquire the cut lock, lock the rows that no other transaction holds, read the clock, write. A locked row keeps
-- its place (`ctid`), so the write finds the row by its place, without the index.
CREATE OR REPLACE FUNCTION tenure_heartbeat_1(
    p_session uuid[], p_active uuid[], p_tenant uuid[], p_user uuid[])
RETURNS TABLE (
    sessions text, found text, state text, deadline_at timestamptz, heartbeat_microseconds bigint, close_reason text,
    recorded uuid[])
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_places tid[];
    v_earliest timestamptz;
    v_now timestamptz;
BEGIN
    IF p_tenant IS NOT NULL THEN
        p_session := tenure_in_scope_1(p_session, p_tenant, p_user);
    END IF;
    PERFORM tenure_lock_cut_shared_1();
    SELECT coalesce(array_agg(l.ctid), '{}'), min(l.deadline_at) INTO v_places, v_earliest
      FROM (
        -- plan: lock
        SELECT s.ctid, s.deadline_at FROM sessions s
         WHERE s.session_id = ANY (p_session) AND s.state IN ('created', 'active')
           FOR UPDATE SKIP LOCKED
        -- plan end
      ) AS l;
    v_now := tenure_write_now();
    -- This query comes before the writes, because the writes give the locked rows new places.
    IF cardinality(v_places) < cardinality(p_session) THEN
        RETURN QUERY
            SELECT ARRAY[s.session_id]::text, CASE WHEN s.closed_at IS NULL THEN 'held' ELSE 'over' END, s.state::text,
                   s.deadline_at, s.heartbeat_microseconds, s.close_reason::text, NULL::uuid[]
              FROM sessions s
             WHERE s.session_id = ANY (p_session) AND s.ctid <> ALL (v_places);
    END IF;
    IF v_earliest <= v_now THEN
        RETURN QUERY
            SELECT ARRAY[c.session_id]::text, 'over', c.state::text, c.deadline_at, c.heartbeat_microseconds,
                   c.close_reason::text, ARRAY[c.user_object_id, c.tenant_object_id, c.capacity_id]
              FROM tenure_close_lapsed_1(
                   ARRAY(SELECT s.session_id FROM sessions s WHERE s.ctid = ANY (v_places)), v_now) AS c;
    END IF;
    RETURN QUERY
        WITH renewed AS (
            -- plan: renew
            UPDATE sessions s
               SET last_heartbeat_at = greatest(s.last_heartbeat_at, v_now),
                   last_activity_at =
                       greatest(s.last_activity_at,
                                CASE WHEN s.session_id = ANY (p_active) THEN greatest(s.started_at, v_now) END),
                   state = CASE WHEN s.session_id = ANY (p_active) THEN 'active' ELSE s.state END,
                   deadline_at = tenure_deadline_1(
                       s.term_ends_at, greatest(s.last_heartbeat_at, v_now), s.lease_microseconds,
                       greatest(coalesce(s.last_activity_at, s.started_at),
                                CASE WHEN s.session_id = ANY (p_active) THEN v_now END),
                       s.idle_microseconds),
                   lapse_reason = tenure_lapse_reason_1(
                       s.term_ends_at, greatest(s.last_heartbeat_at, v_now), s.lease_microseconds,
                       greatest(coalesce(s.last_activity_at, s.started_at),
                                CASE WHEN s.session_id = ANY (p_active) THEN v_now END),
                       s.idle_microseconds),
                   modified_at = CASE WHEN s.modified_at > v_now THEN s.modified_at END
             WHERE s.ctid = ANY (v_places) AND s.deadline_at > v_now
            RETURNING s.session_id, s.state, s.deadline_at, s.heartbeat_microseconds
            -- plan end
        )
        SELECT CASE WHEN count(*) < cardinality(p_session) THEN array_agg(r.session_id)::text END, 'live',
               r.state::text, r.deadline_at, r.heartbeat_microseconds, NULL::text, NULL::uuid[]
          FROM renewed r
         GROUP BY r.deadline_at, r.heartbeat_microseconds, r.state;
END
$$;
