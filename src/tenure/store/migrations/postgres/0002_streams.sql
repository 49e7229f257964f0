-- Attaches: each stream becomes its session's newest. The session gets a lease and an idle limit if it had none; the idle
-- limit then counts from now. A deadline that this brings nearer brings `check_at` nearer, too.
CREATE FUNCTION tenure_attach_1(p_session uuid[], p_lease bigint[], p_heartbeat bigint[], p_idle bigint[])
RETURNS TABLE ("position" int, found text, "now" timestamptz, recorded boolean, session sessions)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_locked uuid[];
    v_now timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7305808868231127649);
    v_locked := ARRAY(
        -- plan: lock
        SELECT s.session_id FROM sessions s
         WHERE s.session_id = ANY (p_session) AND s.state IN ('created', 'active')
           FOR UPDATE SKIP LOCKED
        -- plan end
    );
    v_now := tenure_write_now();
    RETURN QUERY
        WITH attached AS MATERIALIZED (
            SELECT o.session_id, a.position, least(o.term_ends_at, a.lease_ends_at, a.idle_ends_at) AS deadline_at,
                   a.lease, a.heartbeat, a.idle, a.last_activity_at,
                   tenure_lapse_reason(o.term_ends_at, a.lease_ends_at, a.idle_ends_at) AS lapse_reason
              FROM unnest(p_session, p_lease, p_heartbeat, p_idle) WITH ORDINALITY
                   AS w(session_id, lease, heartbeat, idle, position)
              JOIN sessions o ON o.session_id = w.session_id
             CROSS JOIN LATERAL (
                   SELECT f.*,
                          greatest(o.last_heartbeat_at, v_now) + f.lease * interval '1 microsecond' AS lease_ends_at,
                          f.last_activity_at + f.idle * interval '1 microsecond' AS idle_ends_at
                     FROM (SELECT w.position,
                                  coalesce(o.lease_microseconds, w.lease) AS lease,
                                  CASE WHEN o.lease_microseconds IS NULL THEN w.heartbeat
                                       ELSE o.heartbeat_microseconds END AS heartbeat,
                                  coalesce(o.idle_microseconds, w.idle) AS idle,
                                  CASE WHEN o.idle_microseconds IS NULL THEN greatest(o.last_activity_at, v_now)
                                       ELSE o.last_activity_at END AS last_activity_at) AS f) AS a
             WHERE o.session_id = ANY (v_locked) AND o.deadline_at > v_now)
        UPDATE sessions s
           SET attachment = s.attachment + 1, attachment_saves = 0, replaced_saves = s.attachment_saves,
               lease_microseconds = a.lease, heartbeat_microseconds = a.heartbeat, idle_microseconds = a.idle,
               last_heartbeat_at = greatest(s.last_heartbeat_at, v_now), last_activity_at = a.last_activity_at,
               deadline_at = a.deadline_at, check_at = least(s.check_at, a.deadline_at), lapse_reason = a.lapse_reason,
               modified_at = greatest(s.modified_at, v_now),
               stream_bytes_received = coalesce(s.stream_bytes_received, 0),
               stream_chunks = coalesce(s.stream_chunks, 0),
               stream_messages_sent = coalesce(s.stream_messages_sent, 0),
               stream_partials_sent = coalesce(s.stream_partials_sent, 0),
               stream_finals_sent = coalesce(s.stream_finals_sent, 0),
               stream_errors_sent = coalesce(s.stream_errors_sent, 0),
               stream_audio_duration_ms = coalesce(s.stream_audio_duration_ms, 0)
          FROM attached a WHERE s.session_id = a.session_id AND s.state IN ('created', 'active')
        RETURNING a.position::int, 'live', v_now, false, s;
    RETURN QUERY
        UPDATE sessions s
           SET state = 'closed', check_at = NULL, closed_at = s.deadline_at, modified_at = s.deadline_at,
               close_reason = s.lapse_reason
         WHERE s.session_id = ANY (v_locked) AND s.deadline_at <= v_now AND s.state IN ('created', 'active')
        RETURNING array_position(p_session, s.session_id), 'over', v_now, true, s;
    IF cardinality(v_locked) < cardinality(p_session) THEN
        RETURN QUERY
            SELECT w.position::int, CASE WHEN s.closed_at IS NULL THEN 'held' ELSE 'over' END, v_now, false, s
              FROM unnest(p_session) WITH ORDINALITY AS w(session_id, position)
              JOIN sessions s ON s.session_id = w.session_id
             WHERE NOT w.session_id = ANY (v_locked);
    END IF;
END
$$;

-- statement-break

-- What an instance has to say about its streams: they are alive, or they have ended, and what was counted since. Only the
-- newest stream of a session keeps it alive or ends it; but what an older one counted is counted. A save that arrives
-- twice adds nothing the second time.
CREATE FUNCTION tenure_update_streams_1(
    p_session uuid[], p_attachment int[], p_save int[], p_active boolean[], p_end text[], p_finished boolean[],
    p_bytes_received bigint[], p_chunks bigint[], p_messages_sent bigint[], p_partials_sent bigint[],
    p_finals_sent bigint[], p_errors_sent bigint[], p_audio_duration_ms bigint[]
) RETURNS TABLE ("position" int, found text, "now" timestamptz, recorded boolean, session sessions)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_locked uuid[];
    v_now timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7305808868231127649);
    v_locked := ARRAY(
        -- plan: lock
        SELECT s.session_id FROM sessions s WHERE s.session_id = ANY (p_session) FOR UPDATE SKIP LOCKED
        -- plan end
    );
    v_now := tenure_write_now();
    RETURN QUERY
        WITH seen AS MATERIALIZED (
            SELECT u.*, o.attachment = u.attachment AS is_current,
                   o.attachment = u.attachment + 1 AS is_previous,
                   u.save > CASE u.attachment WHEN o.attachment THEN o.attachment_saves
                                              WHEN o.attachment - 1 THEN o.replaced_saves ELSE 0 END AS is_new,
                   o.closed_at IS NULL AND o.deadline_at <= v_now AS has_lapsed,
                   o.closed_at IS NULL AND o.deadline_at > v_now AND o.attachment = u.attachment AS is_kept,
                   greatest(o.last_heartbeat_at, v_now) AS last_heartbeat_at,
                   CASE WHEN u.active THEN greatest(o.last_activity_at, v_now) ELSE o.last_activity_at END
                       AS last_activity_at
              FROM unnest(p_session, p_attachment, p_save, p_active, p_end, p_finished, p_bytes_received, p_chunks,
                          p_messages_sent, p_partials_sent, p_finals_sent, p_errors_sent, p_audio_duration_ms)
                   WITH ORDINALITY
                   AS u(session_id, attachment, save, active, end_reason, finished, bytes_received, chunks,
                        messages_sent, partials_sent, finals_sent, errors_sent, audio_duration_ms, position)
              JOIN sessions o ON o.session_id = u.session_id
             WHERE o.session_id = ANY (v_locked)),
        decided AS MATERIALIZED (
            SELECT n.*, n.is_kept AND n.end_reason IS NOT NULL AS is_ended,
                   n.is_kept AND n.end_reason IS NULL AS is_renewed
              FROM seen n)
        UPDATE sessions s
           SET attachment_saves = CASE WHEN d.is_current THEN greatest(s.attachment_saves, d.save)
                                       ELSE s.attachment_saves END,
               replaced_saves = CASE WHEN d.is_previous THEN greatest(s.replaced_saves, d.save)
                                     ELSE s.replaced_saves END,
               stream_bytes_received = s.stream_bytes_received + CASE WHEN d.is_new THEN d.bytes_received ELSE 0 END,
               stream_chunks = s.stream_chunks + CASE WHEN d.is_new THEN d.chunks ELSE 0 END,
               stream_messages_sent = s.stream_messages_sent + CASE WHEN d.is_new THEN d.messages_sent ELSE 0 END,
               stream_partials_sent = s.stream_partials_sent + CASE WHEN d.is_new THEN d.partials_sent ELSE 0 END,
               stream_finals_sent = s.stream_finals_sent + CASE WHEN d.is_new THEN d.finals_sent ELSE 0 END,
               stream_errors_sent = s.stream_errors_sent + CASE WHEN d.is_new THEN d.errors_sent ELSE 0 END,
               stream_audio_duration_ms =
                   s.stream_audio_duration_ms + CASE WHEN d.is_new THEN d.audio_duration_ms ELSE 0 END,
               last_heartbeat_at = CASE WHEN d.is_renewed THEN d.last_heartbeat_at ELSE s.last_heartbeat_at END,
               last_activity_at = CASE WHEN d.is_kept THEN d.last_activity_at ELSE s.last_activity_at END,
               deadline_at = CASE WHEN d.is_renewed THEN least(
                       s.term_ends_at, d.last_heartbeat_at + s.lease_microseconds * interval '1 microsecond',
                       d.last_activity_at + s.idle_microseconds * interval '1 microsecond') ELSE s.deadline_at END,
               lapse_reason = CASE WHEN d.is_renewed THEN tenure_lapse_reason(
                       s.term_ends_at, d.last_heartbeat_at + s.lease_microseconds * interval '1 microsecond',
                       d.last_activity_at + s.idle_microseconds * interval '1 microsecond') ELSE s.lapse_reason END,
               state = CASE WHEN d.has_lapsed THEN 'closed'
                            WHEN d.is_ended THEN CASE WHEN d.finished THEN 'closed' ELSE 'closing' END
                            WHEN s.state = 'closing' AND d.is_current AND d.finished THEN 'closed'
                            WHEN d.is_renewed AND d.active THEN 'active'
                            ELSE s.state END,
               closed_at = CASE WHEN d.has_lapsed THEN s.deadline_at
                                WHEN d.is_ended THEN greatest(v_now, s.started_at + interval '1 microsecond')
                                ELSE s.closed_at END,
               close_reason = CASE WHEN d.has_lapsed THEN s.lapse_reason WHEN d.is_ended THEN d.end_reason
                                   ELSE s.close_reason END,
               check_at = CASE WHEN d.has_lapsed OR (d.finished AND (d.is_ended OR s.state = 'closing' AND d.is_current))
                               THEN NULL ELSE s.check_at END,
               modified_at = CASE WHEN d.has_lapsed THEN s.deadline_at ELSE greatest(s.modified_at, v_now) END
          FROM decided d WHERE s.session_id = d.session_id
        RETURNING d.position::int,
                  CASE WHEN s.closed_at IS NOT NULL THEN 'over' WHEN d.is_current THEN 'live' ELSE 'replaced' END,
                  v_now, d.has_lapsed OR d.is_ended, s;
    IF cardinality(v_locked) < cardinality(p_session) THEN
        RETURN QUERY
            SELECT u.position::int, 'held', v_now, false, s
              FROM unnest(p_session) WITH ORDINALITY AS u(session_id, position)
              JOIN sessions s ON s.session_id = u.session_id
             WHERE NOT u.session_id = ANY (v_locked);
    END IF;
END
$$;
