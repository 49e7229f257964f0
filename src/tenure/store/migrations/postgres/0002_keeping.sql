-- Heartbeats: renew what is live, record what has lapsed. A row that somebody else holds is answered by `held` and asked
-- for again. No column of an index changes in a row that stays live, so PostgreSQL renews it in its page (HOT). A clock
-- that was stepped back shortens nothing.
CREATE FUNCTION tenure_heartbeat_1(p_session uuid[], p_active boolean[])
RETURNS TABLE (
    "position" int, found text, state text, deadline_at timestamptz, heartbeat_microseconds bigint, close_reason text,
    recorded boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_locked uuid[];
    v_now timestamptz;
    v_kept int;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7305808868231127649);
    v_locked := ARRAY(
        -- plan: lock
        SELECT s.session_id FROM sessions s
         WHERE s.session_id = ANY (p_session) AND s.state IN ('created', 'active')
           FOR UPDATE SKIP LOCKED
        -- plan end
    );
    v_now := tenure_write_now();
    RETURN QUERY
        -- plan: renew
        UPDATE sessions s
           SET last_heartbeat_at = greatest(s.last_heartbeat_at, v_now),
               last_activity_at = CASE WHEN b.active THEN greatest(s.last_activity_at, v_now) ELSE s.last_activity_at END,
               state = CASE WHEN b.active THEN 'active' ELSE s.state END,
               deadline_at = least(
                   s.term_ends_at,
                   greatest(s.last_heartbeat_at, v_now) + s.lease_microseconds * interval '1 microsecond',
                   CASE WHEN b.active THEN greatest(s.last_activity_at, v_now) ELSE s.last_activity_at END
                       + s.idle_microseconds * interval '1 microsecond'),
               lapse_reason = tenure_lapse_reason(
                   s.term_ends_at,
                   greatest(s.last_heartbeat_at, v_now) + s.lease_microseconds * interval '1 microsecond',
                   CASE WHEN b.active THEN greatest(s.last_activity_at, v_now) ELSE s.last_activity_at END
                       + s.idle_microseconds * interval '1 microsecond'),
               modified_at = greatest(s.modified_at, v_now)
          FROM unnest(p_session, p_active) WITH ORDINALITY AS b(session_id, active, position)
         WHERE s.session_id = b.session_id AND s.session_id = ANY (v_locked) AND s.deadline_at > v_now
        RETURNING b.position::int, 'live', s.state::text, s.deadline_at, s.heartbeat_microseconds, NULL::text, false
        -- plan end
    ;
    GET DIAGNOSTICS v_kept = ROW_COUNT;
    IF v_kept < cardinality(v_locked) THEN
        RETURN QUERY
            UPDATE sessions s
               SET state = 'closed', check_at = NULL, closed_at = s.deadline_at, modified_at = s.deadline_at,
                   close_reason = s.lapse_reason
             WHERE s.session_id = ANY (v_locked) AND s.deadline_at <= v_now
            RETURNING array_position(p_session, s.session_id), 'over', s.state::text, s.deadline_at,
                      s.heartbeat_microseconds, s.close_reason::text, true;
    END IF;
    IF cardinality(v_locked) < cardinality(p_session) THEN
        RETURN QUERY
            SELECT b.position::int, CASE WHEN s.closed_at IS NULL THEN 'held' ELSE 'over' END, s.state::text,
                   s.deadline_at, s.heartbeat_microseconds, s.close_reason::text, false
              FROM unnest(p_session) WITH ORDINALITY AS b(session_id, position)
              JOIN sessions s ON s.session_id = b.session_id
             WHERE NOT b.session_id = ANY (v_locked);
    END IF;
END
$$;

-- statement-break

-- Ends: each with its reason, or, if its deadline has passed, as that deadline demands. Nothing comes back for an unknown
-- id, and no session for one that somebody else holds.
CREATE FUNCTION tenure_end_2(p_session uuid[], p_reason text[])
RETURNS TABLE ("position" int, recorded boolean, session sessions)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_locked uuid[];
    v_now timestamptz;
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7305808868231127649);
    v_locked := ARRAY(
        -- plan: lock
        SELECT s.session_id FROM sessions s
         WHERE s.session_id = ANY (p_session) AND s.state IN ('created', 'active')
           FOR UPDATE SKIP LOCKED
        -- plan end
    );
    v_now := tenure_write_now();
    RETURN QUERY
        UPDATE sessions s
           SET state = 'closed', check_at = NULL,
               closed_at = least(s.deadline_at, greatest(v_now, s.started_at + interval '1 microsecond')),
               modified_at = least(s.deadline_at, greatest(v_now, s.started_at + interval '1 microsecond')),
               close_reason = CASE WHEN s.deadline_at <= v_now THEN s.lapse_reason ELSE e.reason END
          FROM unnest(p_session, p_reason) WITH ORDINALITY AS e(session_id, reason, position)
         WHERE s.session_id = e.session_id AND s.session_id = ANY (v_locked)
        RETURNING e.position::int, true, s;
    IF cardinality(v_locked) < cardinality(p_session) THEN
        RETURN QUERY
            SELECT e.position::int, false, CASE WHEN s.closed_at IS NULL THEN NULL::sessions ELSE s END
              FROM unnest(p_session) WITH ORDINALITY AS e(session_id, position)
              JOIN sessions s ON s.session_id = e.session_id
             WHERE NOT e.session_id = ANY (v_locked);
    END IF;
END
$$;

-- statement-break

-- One batch of the sweep: of what `check_at` says is due, what is over is recorded with its deadline as its end, and what
-- lives on is looked at again at its present deadline. A row left `closing` by an instance that died is closed. The last
-- line tells how many were looked at. Rows that others hold are left to them, so any number may sweep at once.
CREATE FUNCTION tenure_expire_1(p_limit int)
RETURNS TABLE (session_id uuid, reason text, ended_at timestamptz, looked_at int)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_probe timestamptz;
    v_now timestamptz;
    v_due uuid[];
BEGIN
    PERFORM pg_advisory_xact_lock_shared(7305808868231127649);
    -- Read into a variable: a volatile clock in a condition uses no index.
    v_probe := tenure_now();
    v_due := ARRAY(
        -- plan: due
        SELECT s.session_id FROM sessions s
         WHERE s.check_at <= v_probe
         ORDER BY s.check_at
         LIMIT p_limit
           FOR UPDATE SKIP LOCKED
        -- plan end
    );
    v_now := tenure_write_now();
    IF cardinality(v_due) > 0 THEN
        RETURN QUERY
            WITH swept AS (
                -- plan: sweep
                UPDATE sessions s
                   SET state = CASE WHEN s.deadline_at <= v_now THEN 'closed' ELSE s.state END,
                       check_at = CASE WHEN s.deadline_at <= v_now THEN NULL ELSE s.deadline_at END,
                       closed_at = CASE WHEN s.deadline_at <= v_now THEN coalesce(s.closed_at, s.deadline_at)
                                        ELSE s.closed_at END,
                       close_reason = CASE WHEN s.deadline_at <= v_now THEN coalesce(s.close_reason, s.lapse_reason)
                                           ELSE s.close_reason END,
                       modified_at = CASE WHEN s.deadline_at <= v_now AND s.closed_at IS NULL THEN s.deadline_at
                                          ELSE s.modified_at END
                 WHERE s.session_id = ANY (v_due) AND s.state IN ('created', 'active', 'closing')
                RETURNING s.session_id, s.deadline_at, s.close_reason, s.closed_at
                -- plan end
            )
            SELECT w.session_id, w.close_reason::text, w.closed_at, NULL::int
              -- A lapse ends at its deadline; an end that a stream has stamped lies before it and was told by whoever did.
              FROM swept w WHERE w.closed_at = w.deadline_at;
    END IF;
    RETURN QUERY SELECT NULL::uuid, NULL::text, NULL::timestamptz, cardinality(v_due);
END
$$;
