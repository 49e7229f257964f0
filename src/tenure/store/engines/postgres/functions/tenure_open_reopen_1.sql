-- Opens sessions in lane `reopen`: ends sessions that have lapsed or have a lower kind, and inserts a new session for
-- each.
--
-- The open row of a key is the row of its session whose end is not recorded yet; the session may have lapsed. The
-- function inserts a session only while it holds the lock on the open row of the key. While this row exists, lane
-- `create` inserts no session for the key, so the function never waits for lane `create`. It does not wait for rows
-- that other transactions hold, either: the request for such a row gets `reopen` and is retried in this lane, and the
-- rest of the batch continues. A request that needs a new session gets `limited` if its capacity has a limit or a
-- tenant.
--
-- A row `closing` returns the lapsed session that was ended. A row `again` without a position stands for all requests
-- that have no row in the result: their keys have no open row. All other rows have the same meaning as in
-- tenure_open_create_1.
--
-- Order: acquire the cut lock, lock the rows that no other transaction holds, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_open_reopen_1(
    p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[], p_session uuid[],
    p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS SETOF tenure_opened_1
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_locked uuid[];
    v_limited uuid[];
    v_now timestamptz;
    v_live boolean;
    v_request record;
    v_old sessions;
    v_new sessions;
BEGIN
    PERFORM tenure_lock_cut_shared_1();
    v_locked := tenure_lock_live_keys_1(p_capacity, p_user);
    v_limited := ARRAY(
        SELECT c.capacity_id FROM capacities c
         WHERE c.capacity_id = ANY (p_capacity)
           AND (c.max_sessions IS NOT NULL OR c.tenant_object_id IS NOT NULL));
    -- Read the clock after the rows are locked. Otherwise this function could record an end that is earlier than the
    -- instant at which another transaction returned the same session as `existing`.
    v_now := tenure_write_now();

    FOR v_request IN
        SELECT u.*
          FROM unnest(p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle) WITH ORDINALITY
               AS u(capacity_id, user_object_id, tenant_object_id, kind, session_id, lease, heartbeat, idle, position)
    LOOP
        -- plan: decide
        SELECT * INTO v_old FROM sessions s
         WHERE s.capacity_id = v_request.capacity_id AND s.user_object_id = v_request.user_object_id
           AND s.closed_at IS NULL;
        -- plan end
        CONTINUE WHEN NOT FOUND;
        v_live := v_old.deadline_at > v_now;
        IF NOT v_old.session_id = ANY (v_locked) THEN
            RETURN NEXT tenure_as_opened_1(v_request.position, 'reopen', NULL);
        ELSIF v_live AND v_old.tenant_object_id <> v_request.tenant_object_id THEN
            RETURN NEXT tenure_as_opened_1(v_request.position, 'tenant-mismatch', v_old);
        ELSIF v_live AND v_old.kind >= v_request.kind THEN
            RETURN NEXT tenure_as_opened_1(v_request.position, 'existing', v_old);
        ELSIF v_request.capacity_id = ANY (v_limited) THEN
            RETURN NEXT tenure_as_opened_1(v_request.position, 'limited', NULL);
        ELSE
            v_new := tenure_replace_session_1(
                v_old, v_now, v_request.session_id, v_request.tenant_object_id, v_request.kind,
                v_request.lease, v_request.heartbeat, v_request.idle,
                p_term, p_default_lease, p_default_heartbeat, p_default_idle);
            IF v_live THEN
                RETURN NEXT tenure_as_opened_1(v_request.position, 'upgraded', v_new);
            ELSE
                RETURN NEXT tenure_as_opened_1(v_request.position, 'closing', v_old);
                RETURN NEXT tenure_as_opened_1(v_request.position, 'created', v_new);
            END IF;
        END IF;
    END LOOP;
    RETURN NEXT tenure_as_opened_1(NULL, 'again', NULL);
END
$$;
