-- Sets the rules of a capacity. A capacity without a row has nothing to lock, so the cut lock is taken alone: every open
-- either was before this or sees it. The lock is asked for briefly, since all writers queue behind whoever waits for it.
CREATE FUNCTION tenure_put_capacity_1(p_capacity uuid, p_max_sessions int, p_when_full text, p_tenant uuid)
RETURNS SETOF capacities
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM set_config('lock_timeout', '200ms', true);
    PERFORM pg_advisory_xact_lock(7305808868231127649);
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

-- statement-break

CREATE FUNCTION tenure_delete_capacity_1(p_capacity uuid)
RETURNS SETOF capacities
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM set_config('lock_timeout', '200ms', true);
    PERFORM pg_advisory_xact_lock(7305808868231127649);
    RETURN QUERY DELETE FROM capacities c WHERE c.capacity_id = p_capacity RETURNING c.*;
END
$$;
