-- Sets the rules of a capacity, and returns them. The capacity may have no row to lock, so the function takes the
-- exclusive cut lock: every open either ends before that or sees the new rules. It waits for the lock 200 ms at most,
-- then raises an error, and the caller retries.
CREATE OR REPLACE FUNCTION tenure_put_capacity_1(p_capacity uuid, p_max_sessions int, p_when_full text, p_tenant uuid)
RETURNS SETOF capacities
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM tenure_lock_cut_exclusive_1();
    v_now := tenure_now();
    RETURN QUERY
    INSERT INTO capacities (capacity_id, tenant_object_id, created_at, modified_at, max_sessions, slack, when_full)
    VALUES (p_capacity, p_tenant, v_now, v_now, p_max_sessions, 0, p_when_full)
    ON CONFLICT (capacity_id) DO UPDATE
       SET tenant_object_id = excluded.tenant_object_id, max_sessions = excluded.max_sessions, slack = 0,
           when_full = excluded.when_full, modified_at = greatest(capacities.modified_at, excluded.modified_at)
    RETURNING capacities.*;
END
$$;
