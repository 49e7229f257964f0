-- As tenure_opened_1, with the counters of a session that has, or had, a stream.
CREATE TYPE tenure_opened_2 AS (
    "position" int, outcome text, session_id uuid, kind smallint, state text,
    started_at timestamptz, term_ends_at timestamptz, deadline_at timestamptz, lapse_reason text,
    lease_microseconds bigint, idle_microseconds bigint, heartbeat_microseconds bigint,
    last_heartbeat_at timestamptz, last_activity_at timestamptz, previous_session_id uuid, modified_at timestamptz,
    tenant_object_id uuid, stream bigint[]
);

-- statement-break

-- Sessions for wishes that are free to begin: one row each, all at `p_now`. Whose key is taken meanwhile gets none. In
-- the order of the arrays, which is that of the keys: two batches wait for each other in one direction only.
CREATE FUNCTION tenure_insert_1(
    p_positions int[], p_now timestamptz,
    p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[], p_session uuid[],
    p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_opened uuid[];
BEGIN
    WITH opened AS (
        -- plan: insert
        INSERT INTO sessions (
            session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at, check_at,
            last_heartbeat_at, last_activity_at, modified_at,
            lease_microseconds, idle_microseconds, heartbeat_microseconds, kind, state, lapse_reason)
        SELECT l.session_id, l.tenant_object_id, l.user_object_id, l.capacity_id, p_now, l.term_ends_at,
               least(l.term_ends_at, l.lease_ends_at, l.idle_ends_at),
               least(l.term_ends_at, l.lease_ends_at, l.idle_ends_at),
               p_now, p_now, p_now,
               l.lease, l.idle, l.heartbeat, l.kind, 'created',
               tenure_lapse_reason(l.term_ends_at, l.lease_ends_at, l.idle_ends_at)
          FROM (SELECT w.*,
                       p_now + p_term * interval '1 microsecond' AS term_ends_at,
                       p_now + w.lease * interval '1 microsecond' AS lease_ends_at,
                       p_now + w.idle * interval '1 microsecond' AS idle_ends_at
                  FROM (SELECT u.session_id, u.tenant_object_id, u.user_object_id, u.capacity_id, u.kind,
                               coalesce(u.lease, p_default_lease) AS lease,
                               CASE WHEN u.lease IS NULL THEN p_default_heartbeat ELSE u.heartbeat END AS heartbeat,
                               coalesce(u.idle, p_default_idle) AS idle
                          FROM unnest(p_session, p_tenant, p_user, p_capacity, p_kind, p_lease, p_heartbeat, p_idle)
                               WITH ORDINALITY AS u(session_id, tenant_object_id, user_object_id, capacity_id, kind,
                                                    lease, heartbeat, idle, position)
                         WHERE p_positions IS NULL OR u.position = ANY (p_positions)) AS w) AS l
        ON CONFLICT (capacity_id, user_object_id) WHERE closed_at IS NULL DO NOTHING
        RETURNING session_id
        -- plan end
    )
    SELECT array_agg(o.session_id) INTO v_opened FROM opened AS o;
    RETURN coalesce(v_opened, '{}');
END
$$;

-- statement-break

-- One session in the place of another, whose row is ours: ended as upgraded if it was live, else as its deadline demands.
CREATE FUNCTION tenure_replace_1(
    p_old sessions, p_live boolean, p_now timestamptz,
    p_session uuid, p_tenant uuid, p_kind smallint, p_lease bigint, p_heartbeat bigint, p_idle bigint,
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS tenure_opened_2
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_line tenure_opened_2;
    v_ended_at timestamptz :=
        CASE WHEN p_live THEN greatest(p_now, p_old.started_at + interval '1 microsecond') ELSE p_old.deadline_at END;
    v_lease_ends_at timestamptz;
    v_idle_ends_at timestamptz;
BEGIN
    UPDATE sessions
       SET state = 'closed', check_at = NULL, closed_at = v_ended_at, modified_at = v_ended_at,
           close_reason = CASE WHEN p_live THEN 'UPGRADED' ELSE p_old.lapse_reason END
     WHERE session_id = p_old.session_id;

    v_line.session_id := p_session;
    v_line.tenant_object_id := p_tenant;
    v_line.kind := p_kind;
    v_line.state := 'created';
    IF p_live THEN
        v_line.outcome := 'upgraded';
        v_line.previous_session_id := p_old.session_id;
        v_line.started_at := v_ended_at;
        p_default_lease := p_old.lease_microseconds;
        p_default_heartbeat := p_old.heartbeat_microseconds;
        p_default_idle := p_old.idle_microseconds;
    ELSE
        v_line.outcome := 'created';
        v_line.started_at := greatest(p_now, v_ended_at);
    END IF;
    v_line.heartbeat_microseconds := CASE WHEN p_lease IS NULL THEN p_default_heartbeat ELSE p_heartbeat END;
    v_line.lease_microseconds := coalesce(p_lease, p_default_lease);
    v_line.idle_microseconds := coalesce(p_idle, p_default_idle);
    v_line.term_ends_at := v_line.started_at + p_term * interval '1 microsecond';
    v_lease_ends_at := v_line.started_at + v_line.lease_microseconds * interval '1 microsecond';
    v_idle_ends_at := v_line.started_at + v_line.idle_microseconds * interval '1 microsecond';
    v_line.deadline_at := least(v_line.term_ends_at, v_lease_ends_at, v_idle_ends_at);
    v_line.lapse_reason := tenure_lapse_reason(v_line.term_ends_at, v_lease_ends_at, v_idle_ends_at);
    v_line.last_heartbeat_at := v_line.started_at;
    v_line.last_activity_at := v_line.started_at;
    v_line.modified_at := v_line.started_at;
    INSERT INTO sessions (
        session_id, tenant_object_id, user_object_id, capacity_id, previous_session_id, started_at, term_ends_at,
        deadline_at, check_at, last_heartbeat_at, last_activity_at, modified_at,
        lease_microseconds, idle_microseconds, heartbeat_microseconds, kind, state, lapse_reason)
    VALUES (
        p_session, p_tenant, p_old.user_object_id, p_old.capacity_id, v_line.previous_session_id,
        v_line.started_at, v_line.term_ends_at,
        v_line.deadline_at, v_line.deadline_at, v_line.started_at, v_line.started_at, v_line.started_at,
        v_line.lease_microseconds, v_line.idle_microseconds, v_line.heartbeat_microseconds,
        p_kind, 'created', v_line.lapse_reason);
    RETURN v_line;
END
$$;

-- statement-break

-- Opens, lane CREATE: answer what is live, insert where there is nothing, and send on what only lane LIMITED may open. One
-- round trip, and no client is needed to commit. 64 creations are answered by one line: all began at that instant.
--
-- Why an `existing` is true although nothing is locked: whoever ends a session first locks its row and then reads the
-- clock. A row whose xmax is 0 (or that of a transaction which was over before our snapshot: a lock that came to
-- nothing) is locked by nobody, so its end lies after this look. Any other goes to lane REOPEN, which waits for it.
CREATE FUNCTION tenure_open_create_2(
    p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[], p_session uuid[],
    p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS SETOF tenure_opened_2
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_line tenure_opened_2;
    v_found tenure_opened_2[];
    v_limited int[];
    v_free int[];
    v_opened uuid[];
    v_now timestamptz;
BEGIN
    v_found := ARRAY(
        -- plan: look
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
                       s.stream_finals_sent, s.stream_errors_sent, s.stream_audio_duration_ms] END)::tenure_opened_2
          FROM unnest(p_capacity, p_user, p_tenant, p_kind) WITH ORDINALITY
               AS w(capacity_id, user_object_id, tenant_object_id, kind, position)
          -- OFFSET 0 keeps the planner, which may have seen the table while it was empty, from scanning it instead.
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

    PERFORM pg_advisory_xact_lock_shared(7305808868231127649);
    -- Whoever changes a capacity holds the cut lock alone: from here on its rules stay as they are seen now.
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
        v_free := ARRAY(
            SELECT w.position FROM unnest(p_session) WITH ORDINALITY AS w(session_id, position)
             WHERE NOT w.position = ANY (v_limited || ARRAY(SELECT f.position FROM unnest(v_found) AS f))
             ORDER BY w.position);
        v_limited := ARRAY(
            SELECT l FROM unnest(v_limited) AS l WHERE NOT l = ANY (ARRAY(SELECT f.position FROM unnest(v_found) AS f)));
        FOREACH v_line.position IN ARRAY v_limited LOOP
            v_line.outcome := 'limited';
            RETURN NEXT v_line;
        END LOOP;
        IF cardinality(v_free) = 0 THEN
            RETURN;
        END IF;
    END IF;

    v_now := tenure_write_now();
    v_opened := tenure_insert_1(
        v_free, v_now, p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle,
        p_term, p_default_lease, p_default_heartbeat, p_default_idle);

    -- The insert may have waited for the session before to end, and that end may lie after our clock. So look again, in
    -- a later statement, and restamp. Almost always nothing has ended since: one probe of an index a batch.
    IF EXISTS (
        -- plan: ended since
        SELECT 1 FROM sessions s WHERE s.closed_at > v_now
        -- plan end
    ) THEN
        FOR v_line.session_id, v_line.started_at IN
            WITH ended AS MATERIALIZED (
                SELECT s.capacity_id, s.user_object_id, max(s.closed_at) AS closed_at
                  FROM sessions s WHERE s.closed_at > v_now GROUP BY s.capacity_id, s.user_object_id),
            late AS MATERIALIZED (
                SELECT w.session_id, greatest(tenure_write_now(), ended.closed_at) AS started_at
                  FROM unnest(p_session, p_capacity, p_user) AS w(session_id, capacity_id, user_object_id)
                  JOIN ended ON ended.capacity_id = w.capacity_id AND ended.user_object_id = w.user_object_id
                 WHERE w.session_id = ANY (v_opened))
            UPDATE sessions n
               SET started_at = late.started_at, last_heartbeat_at = late.started_at,
                   last_activity_at = late.started_at, modified_at = late.started_at,
                   term_ends_at = n.term_ends_at + (late.started_at - v_now),
                   deadline_at = n.deadline_at + (late.started_at - v_now),
                   check_at = n.check_at + (late.started_at - v_now)
              FROM late WHERE n.session_id = late.session_id
            RETURNING n.session_id, n.started_at
        LOOP
            v_line.outcome := 'created';
            v_line.position := array_position(p_session, v_line.session_id);
            RETURN NEXT v_line;
        END LOOP;
    END IF;

    IF cardinality(v_opened) < coalesce(cardinality(v_free), cardinality(p_session)) THEN
        -- Somebody else inserted the key meanwhile: to be looked at again.
        RETURN QUERY
        SELECT (ROW(w.position, 'again', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                    NULL, NULL, NULL)::tenure_opened_2).*
          FROM unnest(p_session) WITH ORDINALITY AS w(session_id, position)
         WHERE NOT w.session_id = ANY (v_opened) AND (v_free IS NULL OR w.position = ANY (v_free));
    END IF;
    v_line := NULL;
    v_line.outcome := 'created';
    v_line.started_at := v_now;
    RETURN NEXT v_line;
END
$$;

-- statement-break

-- Opens, lane REOPEN: end what has lapsed or is of a lower kind, and insert only for what was ended. It never inserts a
-- key that it does not hold, so it never waits for lane CREATE. Nor does it wait for a row that somebody else holds: its
-- wish is answered by `reopen`, to come again, and the others of the batch go on. A wish without a live row is answered
-- by `again`, one whose capacity has rules by `limited`.
CREATE FUNCTION tenure_open_reopen_2(
    p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[], p_session uuid[],
    p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS SETOF tenure_opened_2
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_line tenure_opened_2;
    v_locked uuid[];
    v_limited uuid[];
    v_now timestamptz;
    v_live boolean;
    v_wish record;
    v_old sessions;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7305808868231127649);
    v_locked := ARRAY(
        -- plan: lock
        SELECT s.session_id FROM sessions s
         WHERE s.session_id = ANY (ARRAY(
                   SELECT f.session_id
                     FROM unnest(p_capacity, p_user) AS w(capacity_id, user_object_id)
                    CROSS JOIN LATERAL (
                          SELECT n.session_id FROM sessions n
                           WHERE n.capacity_id = w.capacity_id AND n.user_object_id = w.user_object_id
                             AND n.closed_at IS NULL
                          OFFSET 0) AS f))
           AND s.state IN ('created', 'active')
           FOR UPDATE SKIP LOCKED
        -- plan end
    );
    v_limited := ARRAY(
        SELECT c.capacity_id FROM capacities c
         WHERE c.capacity_id = ANY (p_capacity)
           AND (c.max_sessions IS NOT NULL OR c.tenant_object_id IS NOT NULL));
    -- The locks are ours, so the clock can be read: no end that we write lies before what others were told.
    v_now := tenure_write_now();

    FOR v_wish IN
        SELECT u.*
          FROM unnest(p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle) WITH ORDINALITY
               AS u(capacity_id, user_object_id, tenant_object_id, kind, session_id, lease, heartbeat, idle, position)
    LOOP
        -- plan: decide
        SELECT * INTO v_old FROM sessions s
         WHERE s.capacity_id = v_wish.capacity_id AND s.user_object_id = v_wish.user_object_id AND s.closed_at IS NULL;
        -- plan end
        CONTINUE WHEN NOT FOUND;
        IF NOT v_old.session_id = ANY (v_locked) THEN
            v_line := NULL;
            v_line.position := v_wish.position;
            v_line.outcome := 'reopen';
            RETURN NEXT v_line;
            CONTINUE;
        END IF;
        v_live := v_old.deadline_at > v_now;
        v_line := ROW(v_wish.position, NULL, v_old.session_id, v_old.kind, v_old.state,
                      v_old.started_at, v_old.term_ends_at, v_old.deadline_at, v_old.lapse_reason,
                      v_old.lease_microseconds, v_old.idle_microseconds, v_old.heartbeat_microseconds,
                      v_old.last_heartbeat_at, v_old.last_activity_at, v_old.previous_session_id, v_old.modified_at,
                      v_old.tenant_object_id,
                      CASE WHEN v_old.stream_chunks IS NOT NULL THEN ARRAY[
                       v_old.stream_bytes_received, v_old.stream_chunks, v_old.stream_messages_sent, v_old.stream_partials_sent,
                       v_old.stream_finals_sent, v_old.stream_errors_sent, v_old.stream_audio_duration_ms] END);
        IF v_live AND v_old.tenant_object_id <> v_wish.tenant_object_id THEN
            v_line.outcome := 'tenant-mismatch';
            RETURN NEXT v_line;
            CONTINUE;
        ELSIF v_live AND v_old.kind >= v_wish.kind THEN
            v_line.outcome := 'existing';
            RETURN NEXT v_line;
            CONTINUE;
        ELSIF v_wish.capacity_id = ANY (v_limited) THEN
            v_line := NULL;
            v_line.position := v_wish.position;
            v_line.outcome := 'limited';
            RETURN NEXT v_line;
            CONTINUE;
        ELSIF NOT v_live THEN
            v_line.outcome := 'closing';
            RETURN NEXT v_line;
        END IF;
        v_line := tenure_replace_1(
            v_old, v_live, v_now, v_wish.session_id, v_wish.tenant_object_id, v_wish.kind,
            v_wish.lease, v_wish.heartbeat, v_wish.idle,
            p_term, p_default_lease, p_default_heartbeat, p_default_idle);
        v_line.position := v_wish.position;
        RETURN NEXT v_line;
    END LOOP;
    v_line := NULL;
    v_line.outcome := 'again';
    RETURN NEXT v_line;
END
$$;

-- statement-break

-- Opens, lane LIMITED: all that CREATE and REOPEN do, for capacities that are limited or bound to a tenant. The capacity's
-- row is locked first, so the seats of a capacity are given out by one batch at a time; all other locks are taken only
-- where they are free, so nobody waits while holding one. A wish answered by `limited` comes again.
--
-- What is counted can only be too many: others may close meanwhile, but nobody can open. `slack` are seats known free
-- since the last count; a batch counts (about 1 microsecond a live row) only if it asks for more.
CREATE FUNCTION tenure_open_limited_1(
    p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[], p_session uuid[],
    p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS SETOF tenure_opened_2
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    -- How many more sessions this transaction may close to make room: its answer must fit a socket buffer.
    v_closings_left int := 500;
    v_line tenure_opened_2;
    v_capacity capacities;
    v_wish record;
    v_old sessions;
    v_locked uuid[];
    v_seekers int[];
    v_upgrades int[];
    v_over uuid[];
    v_victims uuid[];
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
    PERFORM pg_advisory_xact_lock_shared(7305808868231127649);
    -- plan: seats
    PERFORM 1 FROM capacities c WHERE c.capacity_id = ANY (p_capacity) ORDER BY c.capacity_id FOR UPDATE;
    -- plan end
    v_locked := ARRAY(
        -- plan: lock
        SELECT s.session_id FROM sessions s
         WHERE s.session_id = ANY (ARRAY(
                   SELECT f.session_id
                     FROM unnest(p_capacity, p_user) AS w(capacity_id, user_object_id)
                    CROSS JOIN LATERAL (
                          SELECT n.session_id FROM sessions n
                           WHERE n.capacity_id = w.capacity_id AND n.user_object_id = w.user_object_id
                             AND n.closed_at IS NULL
                          OFFSET 0) AS f))
           AND s.state IN ('created', 'active')
           FOR UPDATE SKIP LOCKED
        -- plan end
    );

    FOR v_capacity IN
        SELECT c.* FROM capacities c
         WHERE c.capacity_id = ANY (p_capacity) AND (c.max_sessions IS NOT NULL OR c.tenant_object_id IS NOT NULL)
         ORDER BY c.capacity_id
    LOOP
        v_probe := tenure_write_now();
        v_seekers := '{}';
        v_upgrades := '{}';
        v_refusal := 'session-limit';

        -- First those who hold a session: only a lapsed one lets its user seek a seat.
        FOR v_wish IN
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
            v_old := v_wish.old;
            v_line := NULL;
            v_line.position := v_wish.position;
            IF v_old.session_id IS NOT NULL AND NOT v_old.session_id = ANY (v_locked) THEN
                v_line.outcome := 'limited';
            ELSIF v_old.deadline_at > v_probe AND v_old.tenant_object_id <> v_wish.tenant_object_id THEN
                v_line.outcome := 'tenant-mismatch';
            ELSIF v_old.deadline_at > v_probe AND v_old.kind >= v_wish.kind THEN
                v_line := ROW(v_wish.position, 'existing', v_old.session_id, v_old.kind, v_old.state,
                              v_old.started_at, v_old.term_ends_at, v_old.deadline_at, v_old.lapse_reason,
                              v_old.lease_microseconds, v_old.idle_microseconds, v_old.heartbeat_microseconds,
                              v_old.last_heartbeat_at, v_old.last_activity_at, v_old.previous_session_id,
                              v_old.modified_at, v_old.tenant_object_id,
                      CASE WHEN v_old.stream_chunks IS NOT NULL THEN ARRAY[
                       v_old.stream_bytes_received, v_old.stream_chunks, v_old.stream_messages_sent, v_old.stream_partials_sent,
                       v_old.stream_finals_sent, v_old.stream_errors_sent, v_old.stream_audio_duration_ms] END);
            ELSIF v_wish.tenant_object_id <> v_capacity.tenant_object_id THEN
                v_line.outcome := 'capacity-of-another-tenant';
            ELSIF v_old.deadline_at > v_probe THEN
                v_upgrades := v_upgrades || v_wish.position::int;
                CONTINUE;
            ELSE
                IF v_old.session_id IS NOT NULL THEN
                    UPDATE sessions
                       SET state = 'closed', check_at = NULL, closed_at = deadline_at, modified_at = deadline_at,
                           close_reason = lapse_reason
                     WHERE session_id = v_old.session_id;
                    v_line.outcome := 'closing';
                    v_line.session_id := v_old.session_id;
                    v_line.lapse_reason := v_old.lapse_reason;
                    v_line.deadline_at := v_old.deadline_at;
                    RETURN NEXT v_line;
                END IF;
                v_seekers := v_seekers || v_wish.position::int;
                CONTINUE;
            END IF;
            RETURN NEXT v_line;
        END LOOP;

        v_slack := v_capacity.slack;
        v_over := '{}';
        IF cardinality(v_seekers) > v_slack AND v_capacity.max_sessions IS NOT NULL THEN
            -- plan: count
            SELECT count(*), count(*) FILTER (WHERE s.deadline_at <= v_probe) INTO v_taken, v_lapsed
              FROM sessions s
             WHERE s.capacity_id = v_capacity.capacity_id AND s.closed_at IS NULL;
            -- plan end
            v_short := v_taken + cardinality(v_seekers) - v_capacity.max_sessions;
            IF v_short > 0 AND v_lapsed > 0 THEN
                v_over := ARRAY(
                    SELECT s.session_id FROM sessions s
                     WHERE s.capacity_id = v_capacity.capacity_id AND s.closed_at IS NULL AND s.deadline_at <= v_probe
                     LIMIT least(v_short, v_closings_left)
                       FOR UPDATE SKIP LOCKED);
                v_taken := v_taken - cardinality(v_over);
                v_short := v_short - cardinality(v_over);
                v_lapsed := v_lapsed - cardinality(v_over);
                v_closings_left := v_closings_left - cardinality(v_over);
            END IF;
            IF v_short > 0 AND v_lapsed > 0 THEN
                -- Somebody is writing down a lapse at this moment, which will free its seat.
                v_refusal := 'limited';
            ELSIF v_short > 0 AND v_capacity.when_full = 'evictOldest' AND v_capacity.max_sessions > 0 THEN
                v_victims := ARRAY(
                    SELECT s.session_id FROM sessions s
                     WHERE s.capacity_id = v_capacity.capacity_id AND s.closed_at IS NULL
                       AND NOT s.session_id = ANY (v_locked) AND NOT s.session_id = ANY (v_over)
                     ORDER BY s.last_activity_at, s.session_id
                     LIMIT least(v_short, v_closings_left)
                       FOR UPDATE SKIP LOCKED);
                -- Nobody is evicted in vain: only if a seat comes free, or if this is one round of several.
                v_more := cardinality(v_victims) = v_closings_left;
                IF v_more OR v_taken - cardinality(v_victims) < v_capacity.max_sessions THEN
                    v_over := v_over || v_victims;
                    v_taken := v_taken - cardinality(v_victims);
                    v_closings_left := v_closings_left - cardinality(v_victims);
                END IF;
                -- What this batch holds or opens, another may evict.
                IF v_more OR cardinality(v_locked) > 0 OR v_taken < v_capacity.max_sessions THEN
                    v_refusal := 'limited';
                END IF;
            END IF;
            v_slack := greatest(v_capacity.max_sessions - v_taken, 0);
        ELSIF v_capacity.max_sessions IS NULL THEN
            v_slack := cardinality(v_seekers);
        END IF;

        -- All locks are ours: the clock of what follows. A seat that was left later than it, because the clock was stepped
        -- back or a session had to last its one microsecond, is taken no earlier.
        v_now := greatest(v_probe, tenure_write_now());
        FOR v_line.session_id, v_line.lapse_reason, v_line.deadline_at IN
            UPDATE sessions n
               SET state = 'closed', check_at = NULL,
                   closed_at = least(n.deadline_at, greatest(v_now, n.started_at + interval '1 microsecond')),
                   modified_at = least(n.deadline_at, greatest(v_now, n.started_at + interval '1 microsecond')),
                   close_reason = CASE WHEN n.deadline_at <= v_now THEN n.lapse_reason ELSE 'EVICTED' END
             WHERE n.session_id = ANY (v_over) AND n.state IN ('created', 'active')
            RETURNING n.session_id, n.close_reason, n.closed_at
        LOOP
            v_line.outcome := 'closing';
            v_line.position := 1;
            RETURN NEXT v_line;
        END LOOP;
        SELECT greatest(v_now, max(s.closed_at)) INTO v_start
          FROM sessions s WHERE s.closed_at > v_now AND s.capacity_id = v_capacity.capacity_id;

        v_line := NULL;
        FOREACH v_line.position IN ARRAY v_seekers[v_slack + 1:] LOOP
            v_line.outcome := v_refusal;
            RETURN NEXT v_line;
        END LOOP;
        v_seekers := v_seekers[:v_slack];
        IF cardinality(v_seekers) > 0 THEN
            v_opened := tenure_insert_1(
                v_seekers, v_start, p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle,
                p_term, p_default_lease, p_default_heartbeat, p_default_idle);
            FOREACH v_line.position IN ARRAY v_seekers LOOP
                v_line.started_at := v_start;
                v_line.outcome := CASE WHEN p_session[v_line.position] = ANY (v_opened) THEN 'created' ELSE 'again' END;
                RETURN NEXT v_line;
            END LOOP;
        END IF;

        FOR v_wish IN
            SELECT u.*
              FROM unnest(p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle) WITH ORDINALITY
                   AS u(capacity_id, user_object_id, tenant_object_id, kind, session_id, lease, heartbeat, idle, position)
             WHERE u.position = ANY (v_upgrades)
        LOOP
            SELECT * INTO v_old FROM sessions s
             WHERE s.capacity_id = v_wish.capacity_id AND s.user_object_id = v_wish.user_object_id
               AND s.closed_at IS NULL;
            IF v_old.deadline_at <= v_now THEN
                v_line := NULL;
                v_line.position := v_wish.position;
                v_line.outcome := 'limited';
                RETURN NEXT v_line;
                CONTINUE;
            END IF;
            v_line := tenure_replace_1(
                v_old, true, v_now, v_wish.session_id, v_wish.tenant_object_id, v_wish.kind,
                v_wish.lease, v_wish.heartbeat, v_wish.idle,
                p_term, p_default_lease, p_default_heartbeat, p_default_idle);
            v_line.position := v_wish.position;
            RETURN NEXT v_line;
        END LOOP;

        IF v_capacity.max_sessions IS NOT NULL AND v_slack - cardinality(v_seekers) <> v_capacity.slack THEN
            UPDATE capacities SET slack = v_slack - cardinality(v_seekers) WHERE capacity_id = v_capacity.capacity_id;
        END IF;
    END LOOP;
    v_line := NULL;
    v_line.outcome := 'again';
    RETURN NEXT v_line;
END
$$;
