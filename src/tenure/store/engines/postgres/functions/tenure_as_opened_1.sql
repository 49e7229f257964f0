-- Builds the result row of one open request of a batch: the position of the request in the batch, the outcome, and
-- columns of the session. The columns of the session are NULL if `p_session` is NULL.
CREATE OR REPLACE FUNCTION tenure_as_opened_1(p_position bigint, p_outcome text, p_session sessions)
RETURNS tenure_opened_1
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT ROW(
        p_position, p_outcome, (p_session).session_id, (p_session).kind, (p_session).state,
        (p_session).started_at, (p_session).term_ends_at, (p_session).deadline_at,
        tenure_lapse_text_1((p_session).lapse_reason),
        (p_session).lease_microseconds, (p_session).idle_microseconds, (p_session).heartbeat_microseconds,
        (p_session).last_heartbeat_at, coalesce((p_session).last_activity_at, (p_session).started_at),
        (p_session).previous_session_id,
        coalesce((p_session).modified_at, (p_session).closed_at, (p_session).last_heartbeat_at),
        (p_session).tenant_object_id,
        CASE WHEN (p_session).stream_chunks IS NOT NULL THEN ARRAY[
            (p_session).stream_bytes_received, (p_session).stream_chunks, (p_session).stream_messages_sent,
            (p_session).stream_partials_sent, (p_session).stream_finals_sent, (p_session).stream_errors_sent,
            (p_session).stream_audio_duration_ms] END,
        (p_session).user_object_id, (p_session).capacity_id, (p_session).imported_start_at)::tenure_opened_1
$$;
