-- Moves the start of a session, which this transaction has inserted with the start `p_now`, to the current time or to
-- `p_ended`, whichever is later. Moves the end of the session's term and its deadline by the same duration, and returns
-- the new start. `p_ended` is the end of the previous session of the same key.
CREATE OR REPLACE FUNCTION tenure_start_later_1(p_session uuid, p_now timestamptz, p_ended timestamptz)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_start timestamptz := greatest(tenure_write_now(), p_ended);
BEGIN
    UPDATE sessions n
       SET started_at = v_start, last_heartbeat_at = v_start,
           term_ends_at = n.term_ends_at + (v_start - p_now),
           deadline_at = n.deadline_at + (v_start - p_now),
           check_at = n.check_at + (v_start - p_now)
     WHERE n.session_id = p_session;
    RETURN v_start;
END
$$;
