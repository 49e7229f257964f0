-- Opens sessions in lane `limited`: does the work of lanes `create` and `reopen` for capacities that have a limit or
-- belong to a tenant. A request that gets `limited` is retried in this lane. The outcomes `session-limit` (no free
-- seat) and `capacity-of-another-tenant` are final. A row `again` without a position stands for all requests without a
-- result row: they are retried in lane `create`, because their capacities no longer have rules. A row `closing` returns
-- a lapsed or evicted session that this function ended: `lapse_reason` is its close reason, and `deadline_at` is its
-- end. All other rows have the same meaning as in tenure_open_reopen_1. All instances are notified of the ends of
-- sessions that have had a stream.
--
-- Most batches need only part of the steps below: live sessions are returned without a lock, as in lane `create`, and
-- the other requests take seats that are known to be free (`slack`). All other batches need every step.
--
-- Order: read without locks, acquire the cut lock, lock the capacities in the order of their ids, lock the live
-- sessions of the requests, except those that another transaction holds. Then, for each capacity: read the clock, close
-- the lapsed sessions of the requests, count, lock the other lapsed sessions and the sessions to evict (again only
-- those that no other transaction holds), read the clock again, write. So one batch at a time gives out the seats of a
-- capacity, and no transaction waits for a session row while it holds one.
--
-- The count is an upper bound: other transactions may end sessions at the same time, but none can open one. `slack` is
-- the number of seats known to be free since the last count. A batch counts (about one microsecond per live row) only
-- if it needs more seats than `slack`. The condition `kind < 4` is always true. It makes PostgreSQL use the index by
-- capacity.
CREATE OR REPLACE FUNCTION tenure_open_limited_1(
    p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[], p_session uuid[],
    p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS SETOF tenure_opened_1
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    -- How many more sessions this transaction may end to free seats. At most 500 (SWEEP_MAX): the result rows of this
    -- transaction must fit into a socket buffer. PostgreSQL could not send a larger result to a paused instance, and
    -- the transaction would keep its locks (store/limits.py).
    v_closings_left int := 500;
    v_line tenure_opened_1;
    v_found tenure_opened_1[];
    v_named int[];
    v_free int[];
    v_free_capacities uuid[];
    v_fitting int := 0;
    v_capacity capacities;
    v_request record;
    v_old sessions;
    v_new sessions;
    v_locked uuid[];
    v_seekers int[];
    v_upgrades int[];
    v_over uuid[];
    v_victims uuid[];
    v_streamed uuid[];
    v_opened uuid[];
    v_probe timestamptz;
    v_now timestamptz;
    v_start timestamptz;
    v_taken int;
    v_lapsed int;
    v_short int;
    v_slack int;
    v_more boolean;
    v_refusal text;
BEGIN
    v_found := tenure_find_live_1(p_capacity, p_user, p_tenant, p_kind);
    v_named := ARRAY(SELECT f.position FROM unnest(v_found) AS f WHERE f.outcome <> 'reopen');
    IF cardinality(v_named) = cardinality(p_session) THEN
        RETURN QUERY SELECT f.* FROM unnest(v_found) AS f;
        RETURN;
    END IF;
    v_free := ARRAY(
        SELECT w.position FROM unnest(p_session) WITH ORDINALITY AS w(session_id, position)
         WHERE NOT w.position = ANY (v_named)
         ORDER BY w.position);
    v_free_capacities := ARRAY(SELECT p_capacity[f.position] FROM unnest(v_free) AS f(position));

    PERFORM tenure_lock_cut_shared_1();
    FOR v_capacity IN
        -- plan: seats
        SELECT c.* FROM capacities c WHERE c.capacity_id = ANY (p_capacity) ORDER BY c.capacity_id FOR UPDATE
        -- plan end
    LOOP
        v_short := cardinality(array_positions(v_free_capacities, v_capacity.capacity_id));
        IF v_capacity.slack >= v_short AND v_capacity.max_sessions IS NOT NULL
           AND (v_capacity.tenant_object_id IS NULL OR v_capacity.tenant_object_id = ALL (p_tenant)) THEN
            v_fitting := v_fitting + v_short;
        END IF;
    END LOOP;
    v_probe := tenure_write_now();
    -- The last condition covers a clock that was stepped back: the session that freed the seat may have ended later
    -- than v_probe. In that case the steps below open the new session, and start it no earlier than that end (v_start).
    IF v_fitting = cardinality(v_free) AND cardinality(v_named) = cardinality(v_found)
       AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.closed_at > v_probe) THEN
        UPDATE capacities c
           SET slack = c.slack - cardinality(array_positions(v_free_capacities, c.capacity_id))
         WHERE c.capacity_id = ANY (v_free_capacities);
        RETURN QUERY SELECT f.* FROM unnest(v_found) AS f;
        FOREACH v_line IN ARRAY tenure_open_free_1(
            v_free, v_probe, p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle,
            p_term, p_default_lease, p_default_heartbeat, p_default_idle)
        LOOP
            RETURN NEXT v_line;
        END LOOP;
        RETURN;
    END IF;

    v_locked := tenure_lock_live_keys_1(p_capacity, p_user);

    FOR v_capacity IN
        SELECT c.* FROM capacities c
         WHERE c.capacity_id = ANY (p_capacity) AND (c.max_sessions IS NOT NULL OR c.tenant_object_id IS NOT NULL)
         ORDER BY c.capacity_id
    LOOP
        v_probe := tenure_write_now();
        v_seekers := '{}';
        v_upgrades := '{}';
        v_refusal := 'session-limit';

        -- A user who has a session needs a seat only if that session has lapsed.
        FOR v_request IN
            -- plan: own
            SELECT w.position, w.tenant_object_id, w.kind, s.old
              FROM unnest(p_capacity, p_user, p_tenant, p_kind) WITH ORDINALITY
                   AS w(capacity_id, user_object_id, tenant_object_id, kind, position)
              LEFT JOIN LATERAL (
                   SELECT n AS old FROM sessions n
                    WHERE n.capacity_id = w.capacity_id AND n.user_object_id = w.user_object_id AND n.closed_at IS NULL
                   OFFSET 0) AS s ON true
             WHERE w.capacity_id = v_capacity.capacity_id
            -- plan end
        LOOP
            v_old := v_request.old;
            IF v_old.session_id IS NOT NULL AND NOT v_old.session_id = ANY (v_locked) THEN
                RETURN NEXT tenure_as_opened_1(v_request.position, 'limited', NULL);
            ELSIF v_old.deadline_at > v_probe AND v_old.tenant_object_id <> v_request.tenant_object_id THEN
                RETURN NEXT tenure_as_opened_1(v_request.position, 'tenant-mismatch', NULL);
            ELSIF v_old.deadline_at > v_probe AND v_old.kind >= v_request.kind THEN
                RETURN NEXT tenure_as_opened_1(v_request.position, 'existing', v_old);
            ELSIF v_request.tenant_object_id <> v_capacity.tenant_object_id THEN
                RETURN NEXT tenure_as_opened_1(v_request.position, 'capacity-of-another-tenant', NULL);
            ELSIF v_old.deadline_at > v_probe THEN
                v_upgrades := v_upgrades || v_request.position::int;
            ELSE
                IF v_old.session_id IS NOT NULL THEN
                    PERFORM tenure_close_lapsed_1(ARRAY[v_old.session_id], v_probe);
                    RETURN NEXT tenure_as_opened_1(v_request.position, 'closing', v_old);
                END IF;
                v_seekers := v_seekers || v_request.position::int;
            END IF;
        END LOOP;

        v_slack := v_capacity.slack;
        v_over := '{}';
        IF cardinality(v_seekers) > v_slack AND v_capacity.max_sessions IS NOT NULL THEN
            -- plan: count
            SELECT count(*), count(*) FILTER (WHERE s.deadline_at <= v_probe) INTO v_taken, v_lapsed
              FROM sessions s
             WHERE s.capacity_id = v_capacity.capacity_id AND s.closed_at IS NULL AND s.kind < 4;
            -- plan end
            v_short := v_taken + cardinality(v_seekers) - v_capacity.max_sessions;
            IF v_short > 0 AND v_lapsed > 0 THEN
                v_over := ARRAY(
                    SELECT s.session_id FROM sessions s
                     WHERE s.capacity_id = v_capacity.capacity_id AND s.closed_at IS NULL AND s.kind < 4
                       AND s.deadline_at <= v_probe
                     LIMIT least(v_short, v_closings_left)
                       FOR UPDATE SKIP LOCKED);
                v_taken := v_taken - cardinality(v_over);
                v_short := v_short - cardinality(v_over);
                v_lapsed := v_lapsed - cardinality(v_over);
                v_closings_left := v_closings_left - cardinality(v_over);
            END IF;
            IF v_short > 0 AND v_lapsed > 0 THEN
                -- A lapsed session is still counted, because another transaction is recording its end or because this
                -- transaction has reached its limit: the request is retried.
                v_refusal := 'limited';
            ELSIF v_short > 0 AND v_capacity.when_full = 'evictOldest' AND v_capacity.max_sessions > 0 THEN
                v_victims := ARRAY(
                    SELECT s.session_id FROM sessions s
                     WHERE s.capacity_id = v_capacity.capacity_id AND s.closed_at IS NULL AND s.kind < 4
                       AND NOT s.session_id = ANY (v_locked) AND NOT s.session_id = ANY (v_over)
                     ORDER BY coalesce(s.last_activity_at, s.started_at), s.session_id
                     LIMIT least(v_short, v_closings_left)
                       FOR UPDATE SKIP LOCKED);
                -- Evict only if this frees a seat, or if this transaction has reached its limit: the next transaction
                -- then continues.
                v_more := cardinality(v_victims) = v_closings_left;
                IF v_more OR v_taken - cardinality(v_victims) < v_capacity.max_sessions THEN
                    v_over := v_over || v_victims;
                    v_taken := v_taken - cardinality(v_victims);
                    v_closings_left := v_closings_left - cardinality(v_victims);
                END IF;
                -- Retry: the next batch may evict sessions that this batch holds or opens.
                IF v_more OR cardinality(v_locked) > 0 OR v_taken < v_capacity.max_sessions THEN
                    v_refusal := 'limited';
                END IF;
            END IF;
            v_slack := greatest(v_capacity.max_sessions - v_taken, 0);
        ELSIF v_capacity.max_sessions IS NULL THEN
            v_slack := cardinality(v_seekers);
        END IF;

        -- All rows are locked now, so the clock for the writes is read here. A session of this capacity may have ended
        -- after this instant, because the clock was stepped back or because a session lasts at least one microsecond.
        -- The new sessions then start at that end (`v_start`).
        v_now := greatest(v_probe, tenure_write_now());
        v_line := NULL;
        v_line.position := 1;
        v_line.outcome := 'closing';
        v_line.capacity_id := v_capacity.capacity_id;
        FOR v_line.session_id, v_line.lapse_reason, v_line.deadline_at, v_line.user_object_id,
            v_line.tenant_object_id IN
            UPDATE sessions n
               SET state = 'closed', check_at = NULL,
                   closed_at = tenure_closed_at_1(n.started_at, n.deadline_at, v_now),
                   modified_at = NULL,
                   close_reason = CASE WHEN n.deadline_at <= v_now THEN tenure_lapse_text_1(n.lapse_reason)
                                       ELSE 'EVICTED' END
             WHERE n.session_id = ANY (v_over) AND n.state IN ('created', 'active')
            RETURNING n.session_id, n.close_reason, n.closed_at, n.user_object_id, n.tenant_object_id
        LOOP
            RETURN NEXT v_line;
        END LOOP;
        IF cardinality(v_over) > 0 THEN
            v_streamed := ARRAY(
                SELECT s.session_id FROM sessions s WHERE s.session_id = ANY (v_over) AND s.attachment > 0);
            IF cardinality(v_streamed) > 0 THEN
                PERFORM tenure_announce_ends_1(v_streamed);
            END IF;
        END IF;
        SELECT greatest(v_now, max(s.closed_at)) INTO v_start
          FROM sessions s WHERE s.closed_at > v_now AND s.capacity_id = v_capacity.capacity_id;

        v_line := NULL;
        v_line.outcome := v_refusal;
        FOREACH v_line.position IN ARRAY v_seekers[v_slack + 1:] LOOP
            RETURN NEXT v_line;
        END LOOP;
        v_seekers := v_seekers[:v_slack];
        IF cardinality(v_seekers) > 0 THEN
            v_opened := tenure_insert_sessions_1(
                v_seekers, v_start, p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle,
                p_term, p_default_lease, p_default_heartbeat, p_default_idle);
            v_line.started_at := v_start;
            FOREACH v_line.position IN ARRAY v_seekers LOOP
                v_line.outcome := CASE WHEN p_session[v_line.position] = ANY (v_opened) THEN 'created' ELSE 'again' END;
                RETURN NEXT v_line;
            END LOOP;
        END IF;

        FOR v_request IN
            SELECT u.*
              FROM unnest(p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle) WITH ORDINALITY
                   AS u(capacity_id, user_object_id, tenant_object_id, kind, session_id, lease, heartbeat, idle,
                        position)
             WHERE u.position = ANY (v_upgrades)
        LOOP
            SELECT * INTO v_old FROM sessions s
             WHERE s.capacity_id = v_request.capacity_id AND s.user_object_id = v_request.user_object_id
               AND s.closed_at IS NULL;
            IF v_old.deadline_at <= v_now THEN
                RETURN NEXT tenure_as_opened_1(v_request.position, 'limited', NULL);
            ELSE
                v_new := tenure_replace_session_1(
                    v_old, v_now, v_request.session_id, v_request.tenant_object_id, v_request.kind,
                    v_request.lease, v_request.heartbeat, v_request.idle,
                    p_term, p_default_lease, p_default_heartbeat, p_default_idle);
                RETURN NEXT tenure_as_opened_1(v_request.position, 'upgraded', v_new);
            END IF;
        END LOOP;

        IF v_capacity.max_sessions IS NOT NULL AND v_slack - cardinality(v_seekers) <> v_capacity.slack THEN
            UPDATE capacities SET slack = v_slack - cardinality(v_seekers) WHERE capacity_id = v_capacity.capacity_id;
        END IF;
    END LOOP;
    RETURN NEXT tenure_as_opened_1(NULL, 'again', NULL);
END
$$;
