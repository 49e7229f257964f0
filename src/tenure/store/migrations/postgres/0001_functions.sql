-- The database's clock. Tests replace this function, and nothing else, to move time.
CREATE FUNCTION tenure_now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS 'SELECT clock_timestamp()';

-- statement-break

-- The clock of a session write. Call it after the last lock and the last look: read before them, it gives sessions that
-- overlap and writes that escape the cut. Never before the last cut, even if the clock was stepped back.
CREATE FUNCTION tenure_write_now() RETURNS timestamptz
LANGUAGE sql VOLATILE
AS 'SELECT greatest(tenure_now(), (SELECT last_cut_at FROM installation))';

-- statement-break

-- Which limit a deadline stands for: the term wins a tie, then the lease. The same as `earliest` in deadlines.py.
CREATE FUNCTION tenure_lapse_reason(term_ends_at timestamptz, lease_ends_at timestamptz, idle_ends_at timestamptz)
RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE
        WHEN term_ends_at <= least(lease_ends_at, idle_ends_at)
          OR (lease_ends_at IS NULL AND idle_ends_at IS NULL) THEN 'EXPIRED'
        WHEN lease_ends_at <= coalesce(idle_ends_at, lease_ends_at) THEN 'LEASE_EXPIRED'
        ELSE 'IDLE_TIMEOUT'
    END
$$;

-- statement-break

-- One line of the answer to a batch of opens. A line without a position speaks for every wish not named in another.
CREATE TYPE tenure_opened_1 AS (
    "position" int, outcome text, session_id uuid, kind smallint, state text,
    started_at timestamptz, term_ends_at timestamptz, deadline_at timestamptz, lapse_reason text,
    lease_microseconds bigint, idle_microseconds bigint, heartbeat_microseconds bigint,
    last_heartbeat_at timestamptz, last_activity_at timestamptz, previous_session_id uuid, modified_at timestamptz,
    tenant_object_id uuid
);

-- statement-break

-- Opens, lane CREATE: answer what is live, insert where there is nothing. One round trip, and no client is needed to
-- commit. 64 creations are answered by one line: all of them began at that instant.
--
-- Why an `existing` is true although nothing is locked: whoever ends a session first locks its row and then reads the
-- clock. A row whose xmax is 0 (or that of a transaction which was over before our snapshot: a lock that came to
-- nothing) is locked by nobody, so its end lies after this look. Any other goes to lane REOPEN, which waits for it.
CREATE FUNCTION tenure_open_create_1(
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
                   s.tenant_object_id)::tenure_opened_1
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
        v_named := ARRAY(SELECT f.position FROM unnest(v_found) AS f);
    END IF;

    PERFORM pg_advisory_xact_lock_shared(7305808868231127649);
    v_now := tenure_write_now();
    WITH opened AS (
        -- plan: insert
        -- In the order of the arrays, which is that of the keys: two batches wait for each other in one direction only.
        INSERT INTO sessions (
            session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at, check_at,
            last_heartbeat_at, last_activity_at, modified_at,
            lease_microseconds, idle_microseconds, heartbeat_microseconds, kind, state, lapse_reason)
        SELECT l.session_id, l.tenant_object_id, l.user_object_id, l.capacity_id, v_now, l.term_ends_at,
               least(l.term_ends_at, l.lease_ends_at, l.idle_ends_at),
               least(l.term_ends_at, l.lease_ends_at, l.idle_ends_at),
               v_now, v_now, v_now,
               l.lease, l.idle, l.heartbeat, l.kind, 'created',
               tenure_lapse_reason(l.term_ends_at, l.lease_ends_at, l.idle_ends_at)
          FROM (SELECT w.*,
                       v_now + p_term * interval '1 microsecond' AS term_ends_at,
                       v_now + w.lease * interval '1 microsecond' AS lease_ends_at,
                       v_now + w.idle * interval '1 microsecond' AS idle_ends_at
                  FROM (SELECT u.session_id, u.tenant_object_id, u.user_object_id, u.capacity_id, u.kind,
                               coalesce(u.lease, p_default_lease) AS lease,
                               CASE WHEN u.lease IS NULL THEN p_default_heartbeat ELSE u.heartbeat END AS heartbeat,
                               coalesce(u.idle, p_default_idle) AS idle
                          FROM unnest(p_session, p_tenant, p_user, p_capacity, p_kind, p_lease, p_heartbeat, p_idle)
                               WITH ORDINALITY AS u(session_id, tenant_object_id, user_object_id, capacity_id, kind,
                                                    lease, heartbeat, idle, position)
                         WHERE v_named IS NULL OR NOT u.position = ANY (v_named)) AS w) AS l
        ON CONFLICT (capacity_id, user_object_id) WHERE closed_at IS NULL DO NOTHING
        RETURNING session_id
        -- plan end
    )
    SELECT array_agg(o.session_id) INTO v_opened FROM opened AS o;

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

    IF coalesce(cardinality(v_opened), 0) + cardinality(v_found) < cardinality(p_session) THEN
        -- Somebody else inserted the key meanwhile: to be looked at again.
        RETURN QUERY
        SELECT (ROW(w.position, 'again', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                    NULL, NULL)::tenure_opened_1).*
          FROM unnest(p_session) WITH ORDINALITY AS w(session_id, position)
         WHERE NOT w.session_id = ANY (coalesce(v_opened, '{}'))
           AND NOT w.position = ANY (coalesce(v_named, '{}'));
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
-- by `again`.
CREATE FUNCTION tenure_open_reopen_1(
    p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[], p_session uuid[],
    p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS SETOF tenure_opened_1
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_line tenure_opened_1;
    v_locked uuid[];
    v_now timestamptz;
    v_live boolean;
    v_lease_ends_at timestamptz;
    v_idle_ends_at timestamptz;
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
                      v_old.tenant_object_id);
        IF v_live AND v_old.tenant_object_id <> v_wish.tenant_object_id THEN
            v_line.outcome := 'tenant-mismatch';
            RETURN NEXT v_line;
            CONTINUE;
        ELSIF v_live AND v_old.kind >= v_wish.kind THEN
            v_line.outcome := 'existing';
            RETURN NEXT v_line;
            CONTINUE;
        ELSIF NOT v_live THEN
            v_line.outcome := 'lapsed';
            RETURN NEXT v_line;
        END IF;

        UPDATE sessions
           SET state = 'closed', check_at = NULL,
               closed_at = CASE WHEN v_live THEN greatest(v_now, v_old.started_at + interval '1 microsecond')
                                ELSE v_old.deadline_at END,
               close_reason = CASE WHEN v_live THEN 'UPGRADED' ELSE v_old.lapse_reason END,
               modified_at = CASE WHEN v_live THEN greatest(v_now, v_old.started_at + interval '1 microsecond')
                                  ELSE v_old.deadline_at END
         WHERE session_id = v_old.session_id
        RETURNING closed_at INTO v_line.started_at;

        IF v_live THEN
            v_wish.heartbeat := CASE WHEN v_wish.lease IS NULL THEN v_old.heartbeat_microseconds ELSE v_wish.heartbeat END;
            v_wish.lease := coalesce(v_wish.lease, v_old.lease_microseconds);
            v_wish.idle := coalesce(v_wish.idle, v_old.idle_microseconds);
            v_line.outcome := 'upgraded';
            v_line.previous_session_id := v_old.session_id;
        ELSE
            v_wish.heartbeat := CASE WHEN v_wish.lease IS NULL THEN p_default_heartbeat ELSE v_wish.heartbeat END;
            v_wish.lease := coalesce(v_wish.lease, p_default_lease);
            v_wish.idle := coalesce(v_wish.idle, p_default_idle);
            v_line.outcome := 'created';
            v_line.previous_session_id := NULL;
            v_line.started_at := v_now;
        END IF;
        v_line.session_id := v_wish.session_id;
        v_line.tenant_object_id := v_wish.tenant_object_id;
        v_line.kind := v_wish.kind;
        v_line.state := 'created';
        v_line.term_ends_at := v_line.started_at + p_term * interval '1 microsecond';
        v_lease_ends_at := v_line.started_at + v_wish.lease * interval '1 microsecond';
        v_idle_ends_at := v_line.started_at + v_wish.idle * interval '1 microsecond';
        v_line.deadline_at := least(v_line.term_ends_at, v_lease_ends_at, v_idle_ends_at);
        v_line.lapse_reason := tenure_lapse_reason(v_line.term_ends_at, v_lease_ends_at, v_idle_ends_at);
        v_line.lease_microseconds := v_wish.lease;
        v_line.idle_microseconds := v_wish.idle;
        v_line.heartbeat_microseconds := v_wish.heartbeat;
        v_line.last_heartbeat_at := v_line.started_at;
        v_line.last_activity_at := v_line.started_at;
        v_line.modified_at := v_line.started_at;
        INSERT INTO sessions (
            session_id, tenant_object_id, user_object_id, capacity_id, previous_session_id, started_at, term_ends_at,
            deadline_at, check_at, last_heartbeat_at, last_activity_at, modified_at,
            lease_microseconds, idle_microseconds, heartbeat_microseconds, kind, state, lapse_reason)
        VALUES (
            v_line.session_id, v_wish.tenant_object_id, v_wish.user_object_id, v_wish.capacity_id, v_line.previous_session_id,
            v_line.started_at, v_line.term_ends_at,
            v_line.deadline_at, v_line.deadline_at, v_line.started_at, v_line.started_at, v_line.started_at,
            v_line.lease_microseconds, v_line.idle_microseconds, v_line.heartbeat_microseconds,
            v_line.kind, 'created', v_line.lapse_reason);
        RETURN NEXT v_line;
    END LOOP;
    v_line := NULL;
    v_line.outcome := 'again';
    RETURN NEXT v_line;
END
$$;

-- statement-break

-- Ends one session: with the reason given, or, if its deadline has passed, as that deadline demands. `recorded` tells
-- whether this call wrote it down. Nothing comes back for an unknown id.
CREATE FUNCTION tenure_end_1(p_session uuid, p_reason text)
RETURNS TABLE (recorded boolean, session sessions)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_end timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7305808868231127649);
    SELECT * INTO session FROM sessions AS s WHERE s.session_id = p_session FOR UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_now := tenure_write_now();
    recorded := session.closed_at IS NULL;
    IF recorded THEN
        v_end := least(session.deadline_at, greatest(v_now, session.started_at + interval '1 microsecond'));
        UPDATE sessions AS s
           SET state = 'closed', check_at = NULL, closed_at = v_end, modified_at = v_end,
               close_reason = CASE WHEN session.deadline_at <= v_now THEN session.lapse_reason ELSE p_reason END
         WHERE s.session_id = p_session
        RETURNING * INTO session;
    END IF;
    RETURN NEXT;
END
$$;
