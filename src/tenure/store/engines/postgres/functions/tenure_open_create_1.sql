-- Opens sessions, lane `create`. For each key (capacity and user) it returns the live session, or inserts a session if
-- there is none. If the capacity has rules, it does not insert: it returns `limited`.
--
-- The outcomes `existing` and `tenant-mismatch` return the live session. `reopen` and `limited` name the lane in which
-- the caller must retry the request. `again` means that another transaction inserted the key at the same time, so the
-- caller must retry the request. The sessions that a batch creates start at the same instant, so one result row
-- `created` without a position stands for all requests that have no result row of their own. This row has only the
-- start.
--
-- No row is locked, but `existing` is reliable: a transaction that ends a session first locks its row, then reads the
-- clock. If the row's xmax is 0, or belongs to a transaction that had ended before our snapshot, no transaction holds
-- the row, so the session can only end after this read. For any other row the outcome is `reopen`: that lane locks it.
--
-- Order: a read without locks; the cut lock; the rules of the capacities; the clock; the inserts, in the order of the
-- keys.
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
    v_limited int[];
    v_free int[];
    v_opened uuid[];
    v_now timestamptz;
BEGIN
    -- Builds the ROW here, because tenure_as_opened_1 would extract each column from the session row once more.
    v_found := ARRAY(
        -- plan: live
        SELECT ROW(
                   w.position,
                   CASE WHEN s.locked_by <> 0
                             AND age(s.locked_by) <= age(pg_snapshot_xmin(pg_current_snapshot())::xid) THEN 'reopen'
                        WHEN s.deadline_at <= tenure_now() THEN 'reopen'
                        WHEN s.tenant_object_id <> w.tenant_object_id THEN 'tenant-mismatch'
                        WHEN s.kind < w.kind THEN 'reopen'
                        ELSE 'existing' END,
                   s.session_id, s.kind, s.state,
                   s.started_at, s.term_ends_at, s.deadline_at, s.lapse_reason,
                   s.lease_microseconds, s.idle_microseconds, s.heartbeat_microseconds,
                   s.last_heartbeat_at, s.last_activity_at, s.previous_session_id, s.modified_at,
                   s.tenant_object_id,
                   CASE WHEN s.stream_chunks IS NOT NULL THEN ARRAY[
                       s.stream_bytes_received, s.stream_chunks, s.stream_messages_sent, s.stream_partials_sent,
                       s.stream_finals_sent, s.stream_errors_sent, s.stream_audio_duration_ms] END,
                   NULL, NULL, s.imported_start_at)::tenure_opened_1
          FROM unnest(p_capacity, p_user, p_tenant, p_kind) WITH ORDINALITY
               AS w(capacity_id, user_object_id, tenant_object_id, kind, position)
          -- OFFSET 0 prevents a scan of the whole table by a plan that was made while the table was empty.
         CROSS JOIN LATERAL (
               SELECT n.xmax AS locked_by, n.* FROM sessions n
                WHERE n.capacity_id = w.capacity_id AND n.user_object_id = w.user_object_id AND n.closed_at IS NULL
               OFFSET 0) AS s
        -- plan end
    );
    IF cardinality(v_found) > 0 THEN
        RETURN QUERY SELECT f.* FROM unnest(v_found) AS f;
        IF cardinality(v_found) = cardinality(p_session) THEN
            RETURN;
        END IF;
    END IF;

    PERFORM tenure_lock_cut_shared_1();
    -- A change of rules needs the exclusive cut lock, so the rules cannot change until this transaction ends.
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

    v_now := tenure_write_now();
    v_opened := tenure_insert_sessions_1(
        v_free, v_now, p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle,
        p_term, p_default_lease, p_default_heartbeat, p_default_idle);

    -- The insert may have waited for the end of the previous session of a key, and that end may be later than v_now. If
    -- so, the start moves to that end or later. A separate statement checks this, because it must see that end. In
    -- nearly all batches no session has ended since v_now, and the check costs one index probe.
    IF EXISTS (
        -- plan: ended since
        SELECT 1 FROM sessions s WHERE s.closed_at > v_now
        -- plan end
    ) THEN
        v_line.outcome := 'created';
        FOR v_line.position, v_line.started_at IN
            WITH ended AS MATERIALIZED (
                SELECT s.capacity_id, s.user_object_id, max(s.closed_at) AS closed_at
                  FROM sessions s WHERE s.closed_at > v_now GROUP BY s.capacity_id, s.user_object_id),
            late AS MATERIALIZED (
                SELECT w.session_id, w.position, greatest(tenure_write_now(), ended.closed_at) AS started_at
                  FROM unnest(p_session, p_capacity, p_user) WITH ORDINALITY
                       AS w(session_id, capacity_id, user_object_id, position)
                  JOIN ended ON ended.capacity_id = w.capacity_id AND ended.user_object_id = w.user_object_id
                 WHERE w.session_id = ANY (v_opened))
            UPDATE sessions n
               SET started_at = late.started_at, last_heartbeat_at = late.started_at,
                   last_activity_at = late.started_at, modified_at = late.started_at,
                   term_ends_at = n.term_ends_at + (late.started_at - v_now),
                   deadline_at = n.deadline_at + (late.started_at - v_now),
                   check_at = n.check_at + (late.started_at - v_now)
              FROM late WHERE n.session_id = late.session_id
            RETURNING late.position, n.started_at
        LOOP
            RETURN NEXT v_line;
        END LOOP;
    END IF;

    IF cardinality(v_opened) < coalesce(cardinality(v_free), cardinality(p_session)) THEN
        v_line := NULL;
        v_line.outcome := 'again';
        FOR v_line.position IN
            SELECT w.position FROM unnest(p_session) WITH ORDINALITY AS w(session_id, position)
             WHERE NOT w.session_id = ANY (v_opened) AND (v_free IS NULL OR w.position = ANY (v_free))
        LOOP
            RETURN NEXT v_line;
        END LOOP;
    END IF;
    v_line := NULL;
    v_line.outcome := 'created';
    v_line.started_at := v_now;
    RETURN NEXT v_line;
END
$$;
