-- Ends each session now and for its given reason. A session whose deadline has passed ends at its deadline and for its
-- lapse reason. `recorded` means that this call recorded the end. The result has no row for an unknown id. If another
-- transaction holds a session, the column `session` is NULL in the result row of this session, and the caller retries.
-- All instances are notified of the ends of sessions that have had a stream. An id outside the scope of its caller
-- counts as unknown, as in tenure_heartbeat_1.
--
-- `p_actor` is a JSON list of the actors, one per session. Each session that this call ends gets an audit entry. A
-- session whose deadline has passed gets none: it had ended before this call.
--
-- Order: acquire the cut lock, lock the rows that no other transaction holds, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_end_1(
    p_session uuid[], p_reason text[], p_tenant uuid[], p_user uuid[], p_actor jsonb)
RETURNS TABLE ("position" int, recorded boolean, session sessions)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_locked uuid[];
    v_streamed uuid[];
    v_now timestamptz;
BEGIN
    IF p_tenant IS NOT NULL THEN
        p_session := tenure_in_scope_1(p_session, p_tenant, p_user);
    END IF;
    PERFORM tenure_lock_cut_shared_1();
    -- Locks the rows like tenure_lock_sessions_1, and also collects the sessions that have had a stream, so that no
    -- second read is needed to find them.
    SELECT coalesce(array_agg(l.session_id), '{}'), array_agg(l.session_id) FILTER (WHERE l.attachment > 0)
      INTO v_locked, v_streamed
      FROM (
        -- plan: lock
        SELECT s.session_id, s.attachment FROM sessions s
         WHERE s.session_id = ANY (p_session) AND s.state IN ('created', 'active')
           FOR UPDATE SKIP LOCKED
        -- plan end
      ) AS l;
    v_now := tenure_write_now();
    RETURN QUERY
        WITH ended AS (
            UPDATE sessions s
               SET state = 'closed', check_at = NULL,
                   closed_at = tenure_closed_at_1(s.started_at, s.deadline_at, v_now),
                   modified_at = NULL,
                   close_reason = CASE WHEN s.deadline_at <= v_now THEN tenure_lapse_text_1(s.lapse_reason)
                                       ELSE e.reason END
              FROM unnest(p_session, p_reason) WITH ORDINALITY AS e(session_id, reason, position)
             WHERE s.session_id = e.session_id AND s.session_id = ANY (v_locked)
            RETURNING e.position::int AS position, s AS session),
        audited AS (
            INSERT INTO audit_log (entry_id, at, subject, name, action, target, detail, request_id)
            SELECT (a.actor ->> 'entry')::uuid, v_now, a.actor ->> 'subject', a.actor ->> 'name', 'session.ended',
                   (n.session).session_id::text, (n.session).close_reason, a.actor ->> 'request'
              FROM ended n
              JOIN jsonb_array_elements(p_actor) WITH ORDINALITY AS a(actor, position) ON a.position = n.position
             WHERE (n.session).deadline_at > v_now)
        SELECT n.position, true, n.session FROM ended n;
    IF v_streamed IS NOT NULL THEN
        PERFORM tenure_announce_ends_1(v_streamed);
    END IF;
    IF cardinality(v_locked) < cardinality(p_session) THEN
        RETURN QUERY
            SELECT e.position::int, false, CASE WHEN s.closed_at IS NULL THEN NULL::sessions ELSE s END
              FROM unnest(p_session) WITH ORDINALITY AS e(session_id, position)
              JOIN sessions s ON s.session_id = e.session_id
             WHERE NOT e.session_id = ANY (v_locked);
    END IF;
END
$$;
