-- Locks the given sessions whose end is not recorded, and returns their ids. The function never waits: it skips
-- sessions that another transaction has locked. The caller returns `held` for a skipped session.
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
