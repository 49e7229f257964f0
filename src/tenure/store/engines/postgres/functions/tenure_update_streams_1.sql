-- Saves updates of streams. An update reports that a stream is alive or has ended, and what the stream has counted
-- since its previous save. `p_end` is the reason with which the update ends the session, or null; `p_finished` marks
-- the last save of the stream. Only the newest stream of a session renews or ends the session; the counts of an older
-- stream are still added. `p_save` is the number of the save, so that a save of the newest stream of a session, or of
-- the stream before it, is added once even if it arrives twice.
--
-- A keep-alive (neither `p_end` nor `p_finished`) adds nothing to a session that has ended: the stream did not know of
-- the end, and may have counted messages that arrived after the end.
--
-- `found` is `live`, `over`, `replaced` (a newer stream was attached) or `held`. A held row is not written, and the
-- caller retries the update. `recorded` means that this call recorded the end. `counted` means that the session's
-- counters contain the counts of this save. There is no row for an unknown id. If a session has had several streams,
-- all instances are notified of its end: an older stream may still be unaware that it was replaced.
--
-- Order: acquire the cut lock, lock the rows that no other transaction holds, read the clock, write. Unlike
-- tenure_lock_sessions_1 it locks rows of any state, because counts are also added to a session that has ended.
CREATE OR REPLACE FUNCTION tenure_update_streams_1(
    p_session uuid[], p_attachment int[], p_save int[], p_active boolean[], p_end text[], p_finished boolean[],
    p_bytes_received bigint[], p_chunks bigint[], p_messages_sent bigint[], p_partials_sent bigint[],
    p_finals_sent bigint[], p_errors_sent bigint[], p_audio_duration_ms bigint[]
) RETURNS TABLE (
    "position" int, found text, "now" timestamptz, recorded boolean, counted boolean, session sessions)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_locked uuid[];
    v_shared uuid[];
    v_now timestamptz;
BEGIN
    PERFORM tenure_lock_cut_shared_1();
    SELECT coalesce(array_agg(l.session_id), '{}'),
           array_agg(l.session_id) FILTER (WHERE l.attachment > 1 AND l.closed_at IS NULL)
      INTO v_locked, v_shared
      FROM (
        -- plan: lock
        SELECT s.session_id, s.attachment, s.closed_at FROM sessions s
         WHERE s.session_id = ANY (p_session) FOR UPDATE SKIP LOCKED
        -- plan end
      ) AS l;
    v_now := tenure_write_now();
    RETURN QUERY
        WITH seen AS MATERIALIZED (
            SELECT u.*, coalesce(o.attachment, 0) = u.attachment AS is_current,
                   coalesce(o.attachment, 0) = u.attachment + 1 AS is_previous,
                   u.save > CASE u.attachment WHEN o.attachment THEN o.attachment_saves
                                              WHEN o.attachment - 1 THEN o.replaced_saves ELSE 0 END AS is_new,
                   o.closed_at IS NULL AND o.deadline_at <= v_now AS has_lapsed,
                   o.closed_at IS NULL AND o.deadline_at > v_now AS is_live,
                   greatest(o.last_heartbeat_at, v_now) AS last_heartbeat_at,
                   greatest(coalesce(o.last_activity_at, o.started_at), CASE WHEN u.active THEN v_now END)
                       AS last_activity_at
              FROM unnest(p_session, p_attachment, p_save, p_active, p_end, p_finished, p_bytes_received, p_chunks,
                          p_messages_sent, p_partials_sent, p_finals_sent, p_errors_sent, p_audio_duration_ms)
                   WITH ORDINALITY
                   AS u(session_id, attachment, save, active, end_reason, finished, bytes_received, chunks,
                        messages_sent, partials_sent, finals_sent, errors_sent, audio_duration_ms, position)
              JOIN sessions o ON o.session_id = u.session_id
             WHERE o.session_id = ANY (v_locked)),
        decided AS MATERIALIZED (
            SELECT n.*, n.is_live AND n.is_current AND n.end_reason IS NOT NULL AS is_ended,
                   n.is_live AND n.is_current AND n.end_reason IS NULL AS is_renewed,
                   n.is_new AND (n.is_live OR n.end_reason IS NOT NULL OR n.finished) AS is_added
              FROM seen n)
        UPDATE sessions s
           SET attachment_saves = CASE WHEN d.is_current AND d.is_added THEN d.save ELSE s.attachment_saves END,
               replaced_saves = CASE WHEN d.is_previous AND d.is_added THEN d.save ELSE s.replaced_saves END,
               stream_bytes_received = s.stream_bytes_received + CASE WHEN d.is_added THEN d.bytes_received ELSE 0 END,
               stream_chunks = s.stream_chunks + CASE WHEN d.is_added THEN d.chunks ELSE 0 END,
               stream_messages_sent = s.stream_messages_sent + CASE WHEN d.is_added THEN d.messages_sent ELSE 0 END,
               stream_partials_sent = s.stream_partials_sent + CASE WHEN d.is_added THEN d.partials_sent ELSE 0 END,
               stream_finals_sent = s.stream_finals_sent + CASE WHEN d.is_added THEN d.finals_sent ELSE 0 END,
               stream_errors_sent = s.stream_errors_sent + CASE WHEN d.is_added THEN d.errors_sent ELSE 0 END,
               stream_audio_duration_ms =
                   s.stream_audio_duration_ms + CASE WHEN d.is_added THEN d.audio_duration_ms ELSE 0 END,
               last_heartbeat_at = CASE WHEN d.is_renewed THEN d.last_heartbeat_at ELSE s.last_heartbeat_at END,
               last_activity_at = CASE WHEN d.is_renewed OR d.is_ended THEN d.last_activity_at
                                       ELSE s.last_activity_at END,
               deadline_at = CASE WHEN d.is_renewed THEN tenure_deadline_1(
                       s.term_ends_at, d.last_heartbeat_at, s.lease_microseconds, d.last_activity_at,
                       s.idle_microseconds) ELSE s.deadline_at END,
               lapse_reason = CASE WHEN d.is_renewed THEN tenure_lapse_reason_1(
                       s.term_ends_at, d.last_heartbeat_at, s.lease_microseconds, d.last_activity_at,
                       s.idle_microseconds) ELSE s.lapse_reason END,
               state = CASE WHEN d.has_lapsed THEN 'closed'
                            WHEN d.is_ended AND d.finished THEN 'closed'
                            WHEN d.is_ended THEN 'closing'
                            WHEN s.state = 'closing' AND d.is_current AND d.finished THEN 'closed'
                            WHEN d.is_renewed AND d.active THEN 'active'
                            ELSE s.state END,
               closed_at = CASE WHEN d.has_lapsed OR d.is_ended
                                THEN tenure_closed_at_1(s.started_at, s.deadline_at, v_now) ELSE s.closed_at END,
               close_reason = CASE WHEN d.has_lapsed THEN tenure_lapse_text_1(s.lapse_reason)
                                   WHEN d.is_ended THEN d.end_reason
                                   ELSE s.close_reason END,
               check_at = CASE WHEN d.has_lapsed
                                 OR (d.finished AND (d.is_ended OR s.state = 'closing' AND d.is_current))
                               THEN NULL ELSE s.check_at END,
               modified_at = CASE WHEN NOT d.has_lapsed THEN
                       nullif(greatest(coalesce(s.modified_at, s.closed_at, s.last_heartbeat_at), v_now),
                              CASE WHEN d.is_renewed THEN d.last_heartbeat_at END) END
          FROM decided d WHERE s.session_id = d.session_id
        RETURNING d.position::int,
                  CASE WHEN s.closed_at IS NOT NULL THEN 'over' WHEN d.is_current THEN 'live' ELSE 'replaced' END,
                  v_now, d.has_lapsed OR d.is_ended, d.is_added OR NOT d.is_new, s;
    IF v_shared IS NOT NULL THEN
        PERFORM tenure_announce_ends_1(v_shared);
    END IF;
    IF cardinality(v_locked) < cardinality(p_session) THEN
        RETURN QUERY
            SELECT u.position::int, 'held', v_now, false, false, s
              FROM unnest(p_session) WITH ORDINALITY AS u(session_id, position)
              JOIN sessions s ON s.session_id = u.session_id
             WHERE NOT u.session_id = ANY (v_locked);
    END IF;
END
$$;
