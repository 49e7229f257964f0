-- Opens sessions in lane `create`. For each key (capacity and user), the function returns the live session, or inserts
-- a session if there is none. If the capacity has rules, it returns `limited` instead of inserting a session.
--
-- The outcomes `existing` and `tenant-mismatch` return the live session. `reopen` and `limited` name the lane in which
-- the caller must retry the request. `again` means that another transaction inserted a session with the same key at the
-- same time, so the caller must retry the request. The sessions of a batch normally start at the same instant, so one
-- result row `created` without a position stands for all requests without a result row of their own. Apart from the
-- outcome, this row contains only the start.
--
-- Order: read without locks, acquire the cut lock, read the rules of the capacities, read the clock, insert in the
-- order of the keys.
CREATE OR REPLACE FUNCTION tenure_open_create_1(
    p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[], p_session uuid[],
    p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS SETOF tenure_opened_1
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_line tenure_opened_1;
    v_found tenure_opened_1[];
    v_named int[];
    v_limited int[] := '{}';
    v_free int[];
BEGIN
    v_found := tenure_find_live_1(p_capacity, p_user, p_tenant, p_kind);
    IF cardinality(v_found) > 0 THEN
        RETURN QUERY SELECT f.* FROM unnest(v_found) AS f;
        IF cardinality(v_found) = cardinality(p_session) THEN
            RETURN;
        END IF;
    END IF;

    PERFORM tenure_lock_cut_shared_1();
    -- A change of rules needs the exclusive cut lock, so the rules cannot change until this transaction ends. Most
    -- batches contain no capacity with rules. This check recognises such a batch with one index lookup per distinct
    -- capacity.
    IF EXISTS (
        -- plan: rules
        SELECT 1 FROM capacities c
         WHERE c.capacity_id = ANY (p_capacity) AND (c.max_sessions IS NOT NULL OR c.tenant_object_id IS NOT NULL)
        -- plan end
    ) THEN
        v_limited := ARRAY(
            -- plan: limited
            SELECT w.position
              FROM unnest(p_capacity) WITH ORDINALITY AS w(capacity_id, position)
             CROSS JOIN LATERAL (
                   SELECT 1 FROM capacities c
                    WHERE c.capacity_id = w.capacity_id
                      AND (c.max_sessions IS NOT NULL OR c.tenant_object_id IS NOT NULL)
                   OFFSET 0) AS c
            -- plan end
        );
    END IF;
    IF cardinality(v_limited) > 0 OR cardinality(v_found) > 0 THEN
        v_named := ARRAY(SELECT f.position FROM unnest(v_found) AS f);
        v_line.outcome := 'limited';
        FOREACH v_line.position IN ARRAY v_limited LOOP
            CONTINUE WHEN v_line.position = ANY (v_named);
            RETURN NEXT v_line;
        END LOOP;
        v_free := ARRAY(
            SELECT w.position FROM unnest(p_session) WITH ORDINALITY AS w(session_id, position)
             WHERE NOT w.position = ANY (v_limited || v_named)
             ORDER BY w.position);
        IF cardinality(v_free) = 0 THEN
            RETURN;
        END IF;
    END IF;

    FOREACH v_line IN ARRAY tenure_open_free_1(
        v_free, NULL, p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle,
        p_term, p_default_lease, p_default_heartbeat, p_default_idle)
    LOOP
        RETURN NEXT v_line;
    END LOOP;
END
$$;
