-- Closes the given sessions whose deadline has passed. Each session ends at its deadline, with its `lapse_reason` as
-- the close reason. All instances are notified of the ends of sessions that have had a stream. The caller has locked
-- the rows of the given sessions and holds the cut lock.
CREATE OR REPLACE FUNCTION tenure_close_lapsed_1(p_session uuid[], p_now timestamptz)
RETURNS SETOF sessions
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_streamed uuid[];
BEGIN
    RETURN QUERY
        UPDATE sessions s
           SET state = 'closed', check_at = NULL, closed_at = s.deadline_at, modified_at = NULL,
               close_reason = tenure_lapse_text_1(s.lapse_reason)
         WHERE s.session_id = ANY (p_session) AND s.deadline_at <= p_now AND s.state IN ('created', 'active')
        RETURNING s.*;
    v_streamed := ARRAY(
        SELECT s.session_id FROM sessions s
         WHERE s.session_id = ANY (p_session) AND s.attachment > 0 AND s.state = 'closed');
    IF cardinality(v_streamed) > 0 THEN
        PERFORM tenure_announce_ends_1(v_streamed);
    END IF;
END
$$;
