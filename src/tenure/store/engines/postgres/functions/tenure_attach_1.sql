-- Attaches streams: each becomes the newest stream of its session. A session without a lease gets the lease `p_lease`
-- and the heartbeat interval `p_heartbeat`, in microseconds. A session without an idle limit gets the idle limit
-- `p_idle`, which counts from now. If the new deadline is before `check_at`, `check_at` moves back to the new deadline.
-- `found` is `live`, `over`, or `held` if another transaction holds the row; the caller retries a held row. `recorded`
-- is true if this call recorded the end. There is no row for an id that is unknown or outside the scope of its caller.
--
-- Order: acquire the cut lock, lock the rows that no other transaction holds, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_attach_1(
    p_session uuid[], p_lease bigint[], p_heartbeat bigint[], p_idle bigint[], p_tenant uuid[], p_user uuid[])
RETURNS TABLE ("position" int, found text, "now" timestamptz, recorded boolean, session sessions)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_locked uuid[];
    v_now timestamptz;
    v_attached int;
BEGIN
    IF p_tenant IS NOT NULL THEN
        p_session := tenure_in_scope_1(p_session, p_tenant, p_user);
    END IF;
    PERFORM tenure_lock_cut_shared_1();
    v_locked := tenure_lock_sessions_1(p_session);
    v_now := tenure_write_now();
    RETURN QUERY
        WITH attached AS MATERIALIZED (
            SELECT o.session_id, w.position,
                   coalesce(o.lease_microseconds, w.lease) AS lease,
                   CASE WHEN o.lease_microseconds IS NULL THEN w.heartbeat
                        ELSE o.heartbeat_microseconds END AS heartbeat,
                   coalesce(o.idle_microseconds, w.idle) AS idle,
                   greatest(o.last_heartbeat_at, v_now) AS last_heartbeat_at,
                   greatest(coalesce(o.last_activity_at, o.started_at),
                            CASE WHEN o.idle_microseconds IS NULL THEN v_now END) AS last_activity_at
              FROM unnest(p_session, p_lease, p_heartbeat, p_idle) WITH ORDINALITY
                   AS w(session_id, lease, heartbeat, idle, position)
              JOIN sessions o ON o.session_id = w.session_id
             WHERE o.session_id = ANY (v_locked) AND o.deadline_at > v_now)
        UPDATE sessions s
           SET attachment = coalesce(s.attachment, 0) + 1, attachment_saves = 0,
               replaced_saves = coalesce(s.attachment_saves, 0),
               lease_microseconds = a.lease, heartbeat_microseconds = a.heartbeat, idle_microseconds = a.idle,
               last_heartbeat_at = a.last_heartbeat_at, last_activity_at = a.last_activity_at,
               deadline_at =
                   tenure_deadline_1(s.term_ends_at, a.last_heartbeat_at, a.lease, a.last_activity_at, a.idle),
               check_at = least(
                   s.check_at,
                   tenure_deadline_1(s.term_ends_at, a.last_heartbeat_at, a.lease, a.last_activity_at, a.idle)),
               lapse_reason =
                   tenure_lapse_reason_1(s.term_ends_at, a.last_heartbeat_at, a.lease, a.last_activity_at, a.idle),
               modified_at = CASE WHEN s.modified_at > v_now THEN s.modified_at END,
               stream_bytes_received = coalesce(s.stream_bytes_received, 0),
               stream_chunks = coalesce(s.stream_chunks, 0),
               stream_messages_sent = coalesce(s.stream_messages_sent, 0),
               stream_partials_sent = coalesce(s.stream_partials_sent, 0),
               stream_finals_sent = coalesce(s.stream_finals_sent, 0),
               stream_errors_sent = coalesce(s.stream_errors_sent, 0),
               stream_audio_duration_ms = coalesce(s.stream_audio_duration_ms, 0)
          FROM attached a WHERE s.session_id = a.session_id
        RETURNING a.position::int, 'live', v_now, false, s;
    GET DIAGNOSTICS v_attached = ROW_COUNT;
    IF v_attached < cardinality(v_locked) THEN
        RETURN QUERY
            SELECT array_position(p_session, c.session_id), 'over', v_now, true, c
              FROM tenure_close_lapsed_1(v_locked, v_now) AS c;
    END IF;
    IF cardinality(v_locked) < cardinality(p_session) THEN
        RETURN QUERY
            SELECT w.position::int, CASE WHEN s.closed_at IS NULL THEN 'held' ELSE 'over' END, v_now, false, s
              FROM unnest(p_session) WITH ORDINALITY AS w(session_id, position)
              JOIN sessions s ON s.session_id = w.session_id
             WHERE NOT w.session_id = ANY (v_locked);
    END IF;
END
$$;
