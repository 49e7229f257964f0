-- Deletes the rules of a capacity, and returns the deleted row, or no row if there were no rules. Takes the exclusive
-- cut lock for the same reason as tenure_put_capacity_1. `p_scope` is the tenant that the caller is bound to, or NULL.
-- For a bound caller, the function deletes only rules of a capacity that is bound to the same tenant.
CREATE OR REPLACE FUNCTION tenure_delete_capacity_1(p_capacity uuid, p_scope uuid, p_actor jsonb)
RETURNS SETOF capacities
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_old capacities;
BEGIN
    IF p_scope IS NOT NULL AND NOT EXISTS (
        SELECT FROM capacities c WHERE c.capacity_id = p_capacity AND c.tenant_object_id = p_scope) THEN
        RETURN;
    END IF;
    PERFORM tenure_lock_cut_exclusive_1();
    DELETE FROM capacities c
     WHERE c.capacity_id = p_capacity AND (p_scope IS NULL OR c.tenant_object_id = p_scope)
    RETURNING c.* INTO v_old;
    IF FOUND THEN
        PERFORM tenure_audit_1(
            tenure_now(), p_actor, 'capacity.deleted', p_capacity::text, tenure_rules_text_1(v_old), 1);
        RETURN NEXT v_old;
    END IF;
END
$$;
