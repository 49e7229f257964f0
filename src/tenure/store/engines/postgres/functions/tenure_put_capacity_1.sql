-- Sets the rules of a capacity, and returns them. The capacity may have no row to lock, so the function takes the
-- exclusive cut lock: every transaction that opens sessions either ends before the lock is granted, or sees the new
-- rules. The function waits for the lock 200 ms at most. Then it raises an error, and the caller retries. Rules that
-- equal the current ones change nothing, and no audit entry is written.
--
-- `p_scope` is the tenant that the caller is bound to; NULL if the caller is not bound to a tenant. A bound caller can
-- change only a capacity that is bound to the same tenant. For any other capacity, and for one without rules, the
-- function returns no row. It checks this before it acquires the lock, and again afterwards.
CREATE OR REPLACE FUNCTION tenure_put_capacity_1(
    p_capacity uuid, p_max_sessions int, p_when_full text, p_tenant uuid, p_scope uuid, p_actor jsonb)
RETURNS SETOF capacities
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_old capacities;
    v_new capacities;
BEGIN
    IF p_scope IS NOT NULL AND NOT EXISTS (
        SELECT FROM capacities c WHERE c.capacity_id = p_capacity AND c.tenant_object_id = p_scope) THEN
        RETURN;
    END IF;
    PERFORM tenure_lock_cut_exclusive_1();
    SELECT * INTO v_old FROM capacities c WHERE c.capacity_id = p_capacity;
    IF p_scope IS NOT NULL AND v_old.tenant_object_id IS DISTINCT FROM p_scope THEN
        RETURN;
    END IF;
    IF v_old.capacity_id IS NOT NULL
       AND (v_old.max_sessions, v_old.when_full, v_old.tenant_object_id)
           IS NOT DISTINCT FROM (p_max_sessions, p_when_full::varchar, p_tenant) THEN
        RETURN NEXT v_old;
        RETURN;
    END IF;
    v_now := tenure_now();
    INSERT INTO capacities (capacity_id, tenant_object_id, created_at, modified_at, max_sessions, slack, when_full)
    VALUES (p_capacity, p_tenant, v_now, v_now, p_max_sessions, 0, p_when_full)
    ON CONFLICT (capacity_id) DO UPDATE
       SET tenant_object_id = excluded.tenant_object_id, max_sessions = excluded.max_sessions, slack = 0,
           when_full = excluded.when_full, modified_at = greatest(capacities.modified_at, excluded.modified_at)
    RETURNING capacities.* INTO v_new;
    PERFORM tenure_audit_1(
        v_now, p_actor, 'capacity.changed', p_capacity::text,
        tenure_rules_text_1(v_old) || ' -> ' || tenure_rules_text_1(v_new), 1);
    RETURN NEXT v_new;
END
$$;
