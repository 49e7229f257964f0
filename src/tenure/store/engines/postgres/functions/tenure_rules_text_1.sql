-- Returns the text of a capacity's rules for the audit log; `none` if the capacity has no rules. `rules_text` in
-- domain/capacities.py formats rules in the same way.
CREATE OR REPLACE FUNCTION tenure_rules_text_1(p_capacity capacities) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE WHEN p_capacity.capacity_id IS NULL THEN 'none'
                ELSE format('maxSessions=%s, whenFull=%s, tenantObjectId=%s',
                            coalesce(p_capacity.max_sessions::text, 'null'), p_capacity.when_full,
                            coalesce(p_capacity.tenant_object_id::text, 'null')) END
$$;
