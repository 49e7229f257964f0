-- Locks the sessions that hold the given keys (capacity, user) and whose end is not recorded, and returns the session
-- ids. The function never waits: it skips sessions that another transaction has locked. If it skips a session, the open
-- request for the key of this session is retried in the same lane.
CREATE OR REPLACE FUNCTION tenure_lock_live_keys_1(p_capacity uuid[], p_user uuid[]) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN ARRAY(
        -- plan: lock
        SELECT s.session_id FROM sessions s
         WHERE s.session_id = ANY (ARRAY(
                   SELECT f.session_id
                     FROM unnest(p_capacity, p_user) AS w(capacity_id, user_object_id)
                    CROSS JOIN LATERAL (
                          SELECT n.session_id FROM sessions n
                           WHERE n.capacity_id = w.capacity_id AND n.user_object_id = w.user_object_id
                             AND n.closed_at IS NULL
                          OFFSET 0) AS f))
           AND s.state IN ('created', 'active')
           FOR UPDATE SKIP LOCKED
        -- plan end
    );
END
$$;
