-- Opens one session in lane `create`: does the same as tenure_open_create_1 for a batch of one, in fewer statements. If
-- the key (capacity and user) has no live session and the capacity has no rules, it inserts the session. If there is a
-- live session, it returns what tenure_find_live_1 finds. In all other cases it calls tenure_open_create_1 and returns
-- the rows of that call.
--
-- The previous session of the key may have ended after the clock was read, as tenure_open_free_1 explains. Such an
-- end is possible only if a transaction that writes has ended since the statement that reads the clock, or if the clock
-- was stepped back behind the newest end. tenure_open_one_1 looks for the end only in these two cases. It recognises
-- the first case because the snapshot of that statement differs from the snapshot after the insert.
--
-- Order: acquire the cut lock, look for a live session and read the clock in one statement, insert.
CREATE OR REPLACE FUNCTION tenure_open_one_1(
    p_one_capacity uuid, p_one_user uuid, p_one_tenant uuid, p_one_kind smallint, p_one_session uuid,
    p_one_lease bigint, p_one_heartbeat bigint, p_one_idle bigint,
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS SETOF tenure_opened_1
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_line tenure_opened_1;
    v_now timestamptz;
    v_is_live boolean;
    v_has_rules boolean;
    v_last_end timestamptz;
    v_seen text;
    v_term_ends_at timestamptz;
    v_lease bigint;
    v_heartbeat bigint;
    v_idle bigint;
    v_ended timestamptz;
BEGIN
    IF NOT tenure_try_lock_cut_shared_1() THEN
        -- A live session is returned without waiting for a cut, as in tenure_open_create_1.
        FOREACH v_line IN ARRAY tenure_find_live_1(
            ARRAY[p_one_capacity], ARRAY[p_one_user], ARRAY[p_one_tenant], ARRAY[p_one_kind])
        LOOP
            RETURN NEXT v_line;
            RETURN;
        END LOOP;
        PERFORM tenure_lock_cut_shared_1();
    END IF;
    SELECT EXISTS (
               -- plan: live
               SELECT 1 FROM sessions n
                WHERE n.capacity_id = p_one_capacity AND n.user_object_id = p_one_user AND n.closed_at IS NULL
               -- plan end
           ), EXISTS (
               -- plan: rules
               SELECT 1 FROM capacities c
                WHERE c.capacity_id = p_one_capacity
                  AND (c.max_sessions IS NOT NULL OR c.tenant_object_id IS NOT NULL)
               -- plan end
           ), (
               -- plan: last end
               SELECT s.closed_at FROM sessions s WHERE s.closed_at IS NOT NULL ORDER BY s.closed_at DESC LIMIT 1
               -- plan end
           ),
           pg_current_snapshot()::text,
           -- The same as tenure_write_now(). A call of that function would cost as much as a statement.
           greatest(tenure_now(), i.last_cut_at, i.stamped_after + interval '1 microsecond')
      INTO v_is_live, v_has_rules, v_last_end, v_seen, v_now
      FROM installation i;
    IF v_is_live THEN
        FOREACH v_line IN ARRAY tenure_find_live_1(
            ARRAY[p_one_capacity], ARRAY[p_one_user], ARRAY[p_one_tenant], ARRAY[p_one_kind])
        LOOP
            RETURN NEXT v_line;
            RETURN;
        END LOOP;
    END IF;
    -- v_is_live is true here only if the live session of the statement above has ended since.
    IF v_is_live OR v_has_rules THEN
        RETURN QUERY SELECT o.* FROM tenure_open_create_1(
            ARRAY[p_one_capacity], ARRAY[p_one_user], ARRAY[p_one_tenant], ARRAY[p_one_kind], ARRAY[p_one_session],
            ARRAY[p_one_lease], ARRAY[p_one_heartbeat], ARRAY[p_one_idle],
            p_term, p_default_lease, p_default_heartbeat, p_default_idle) AS o;
        RETURN;
    END IF;

    v_lease := coalesce(p_one_lease, p_default_lease);
    v_heartbeat := CASE WHEN p_one_lease IS NULL THEN p_default_heartbeat ELSE p_one_heartbeat END;
    v_idle := coalesce(p_one_idle, p_default_idle);
    v_term_ends_at := v_now + p_term * interval '1 microsecond';
    -- plan: insert
    INSERT INTO sessions (
        session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at, check_at,
        last_heartbeat_at,
        lease_microseconds, idle_microseconds, heartbeat_microseconds, kind, state, lapse_reason)
    VALUES (p_one_session, p_one_tenant, p_one_user, p_one_capacity, v_now, v_term_ends_at,
            tenure_deadline_1(v_term_ends_at, v_now, v_lease, v_now, v_idle),
            tenure_deadline_1(v_term_ends_at, v_now, v_lease, v_now, v_idle),
            v_now, v_lease, v_idle, v_heartbeat, p_one_kind, 'created',
            tenure_lapse_reason_1(v_term_ends_at, v_now, v_lease, v_now, v_idle))
    ON CONFLICT (capacity_id, user_object_id) WHERE closed_at IS NULL DO NOTHING;
    -- plan end
    IF NOT FOUND THEN
        v_line.position := 1;
        v_line.outcome := 'again';
        RETURN NEXT v_line;
        RETURN;
    END IF;

    v_line.outcome := 'created';
    v_line.started_at := v_now;
    IF v_last_end > v_now OR v_seen <> pg_current_snapshot()::text THEN
        -- plan: ended since
        SELECT max(s.closed_at) INTO v_ended FROM sessions s
         WHERE s.closed_at > v_now AND s.capacity_id = p_one_capacity AND s.user_object_id = p_one_user;
        -- plan end
        IF v_ended IS NOT NULL THEN
            v_line.position := 1;
            v_line.started_at := tenure_start_later_1(p_one_session, v_now, v_ended);
        END IF;
    END IF;
    RETURN NEXT v_line;
END
$$;
