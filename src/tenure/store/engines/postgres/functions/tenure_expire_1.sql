-- Runs one batch of the sweep, under the fence of job `expire-sessions`. The function checks the rows whose
-- `check_at` has passed. If the deadline of a session is still ahead, the deadline becomes the next `check_at`. If the
-- deadline has passed, the function records the lapse, with the deadline as the end; if the end is recorded already,
-- because an instance died and left the session in state `closing`, it only closes the session. Each result row is a
-- lapse, except the last one, which has only the number of rows that were checked. All instances are notified of the
-- ends of sessions that have had a stream.
--
-- The function skips rows that other transactions hold, and the next sweep finds them again. So any number of sweeps
-- may run at the same time.
--
-- Order: check the fence (which locks the lease), acquire the cut lock, read the clock, lock the rows that no other
-- transaction holds, read the clock again, write.
CREATE OR REPLACE FUNCTION tenure_expire_1(p_name text, p_holder text, p_epoch bigint, p_limit int)
RETURNS TABLE (
    session_id uuid, reason text, ended_at timestamptz, user_object_id uuid, tenant_object_id uuid, capacity_id uuid,
    looked_at int)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_probe timestamptz;
    v_now timestamptz;
    v_due uuid[];
    v_streamed uuid[];
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    PERFORM tenure_lock_cut_shared_1();
    -- The current time is read into a variable, because a condition that calls a volatile function cannot use an index.
    v_probe := tenure_now();
    SELECT coalesce(array_agg(l.session_id), '{}'), array_agg(l.session_id) FILTER (WHERE l.attachment > 0)
      INTO v_due, v_streamed
      FROM (
        -- plan: due
        SELECT s.session_id, s.attachment FROM sessions s
         WHERE s.check_at <= v_probe
         ORDER BY s.check_at
         LIMIT p_limit
           FOR UPDATE SKIP LOCKED
        -- plan end
      ) AS l;
    v_now := tenure_write_now();
    IF cardinality(v_due) > 0 THEN
        RETURN QUERY
            WITH swept AS (
                -- plan: sweep
                UPDATE sessions s
                   SET state = CASE WHEN s.deadline_at <= v_now THEN 'closed' ELSE s.state END,
                       check_at = CASE WHEN s.deadline_at <= v_now THEN NULL ELSE s.deadline_at END,
                       closed_at = CASE WHEN s.deadline_at <= v_now THEN coalesce(s.closed_at, s.deadline_at)
                                        ELSE s.closed_at END,
                       close_reason = CASE WHEN s.deadline_at <= v_now
                                           THEN coalesce(s.close_reason, tenure_lapse_text_1(s.lapse_reason))
                                           ELSE s.close_reason END,
                       modified_at = CASE WHEN s.deadline_at > v_now OR s.closed_at IS NOT NULL THEN s.modified_at END
                 WHERE s.session_id = ANY (v_due) AND s.state IN ('created', 'active', 'closing')
                RETURNING s.session_id, s.deadline_at, s.close_reason, s.closed_at, s.user_object_id,
                          s.tenant_object_id, s.capacity_id
                -- plan end
            )
            SELECT w.session_id, w.close_reason::text, w.closed_at, w.user_object_id, w.tenant_object_id,
                   w.capacity_id, NULL::int
              -- Only lapses: their end is the deadline. An end that a stream recorded is before the deadline, and was
              -- already returned to the stream's instance.
              FROM swept w WHERE w.closed_at = w.deadline_at;
    END IF;
    IF v_streamed IS NOT NULL THEN
        PERFORM tenure_announce_ends_1(v_streamed);
    END IF;
    RETURN QUERY SELECT NULL::uuid, NULL::text, NULL::timestamptz, NULL::uuid, NULL::uuid, NULL::uuid,
                        cardinality(v_due);
END
$$;
