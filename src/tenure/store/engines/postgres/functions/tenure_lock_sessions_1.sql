-- Locks those of the given sessions that are live and that no other transaction has locked, and returns their ids. It
-- never waits. The caller returns `held` for a live session that is missing here.
CREATE OR REPLACE FUNCTION tenure_lock_sessions_1(p_session uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN ARRAY(
        -- plan: lock
        SELECT s.session_id FROM sessions s
         WHERE s.session_id = ANY (p_session) AND s.state IN ('created', 'active')
           FOR UPDATE SKIP LOCKED
        -- plan end
    );
END
$$;
