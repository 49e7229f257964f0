-- Inserts sessions for the open requests at the given positions (NULL: for all requests). The keys of these requests
-- had no live session when the caller checked. The caller has acquired all locks. No session starts before
-- `p_not_before`, even if the clock was stepped back behind `p_not_before`.
--
-- Returns a row `again` for each request whose key another transaction has taken since, and a row `created` for each
-- session whose start had to move. All other sessions start at the same instant, so one row `created` without a
-- position stands for all requests without a result row of their own. The only value of this row is the start. The rows
-- are returned as an array, because a call of a function that returns a set costs more.
CREATE OR REPLACE FUNCTION tenure_open_free_1(
    p_positions int[], p_not_before timestamptz,
    p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[], p_session uuid[],
    p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS tenure_opened_1[]
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_line tenure_opened_1;
    v_lines tenure_opened_1[] := '{}';
    v_opened uuid[];
    v_now timestamptz;
BEGIN
    v_now := greatest(p_not_before, tenure_write_now());
    v_opened := tenure_insert_sessions_1(
        p_positions, v_now, p_capacity, p_user, p_tenant, p_kind, p_session, p_lease, p_heartbeat, p_idle,
        p_term, p_default_lease, p_default_heartbeat, p_default_idle);

    -- The insert may have waited for the end of the previous session of a key, and that end may be later than v_now. If
    -- so, the start moves to that end or later. A separate statement checks this, because the insert may not see an end
    -- for which it has waited. In nearly all batches no session has ended since v_now, and the check costs one index
    -- probe.
    IF EXISTS (
        -- plan: ended since
        SELECT 1 FROM sessions s WHERE s.closed_at > v_now
        -- plan end
    ) THEN
        v_line.outcome := 'created';
        FOR v_line.position, v_line.started_at IN
            SELECT w.position, tenure_start_later_1(w.session_id, v_now, ended.closed_at)
              FROM unnest(p_session, p_capacity, p_user) WITH ORDINALITY
                   AS w(session_id, capacity_id, user_object_id, position)
              JOIN (SELECT s.capacity_id, s.user_object_id, max(s.closed_at) AS closed_at
                      FROM sessions s
                     WHERE s.closed_at > v_now AND s.user_object_id = ANY (p_user)
                     GROUP BY s.capacity_id, s.user_object_id) AS ended
                ON ended.capacity_id = w.capacity_id AND ended.user_object_id = w.user_object_id
             WHERE w.session_id = ANY (v_opened)
        LOOP
            v_lines := v_lines || v_line;
        END LOOP;
    END IF;

    IF cardinality(v_opened) < coalesce(cardinality(p_positions), cardinality(p_session)) THEN
        v_line := NULL;
        v_line.outcome := 'again';
        FOR v_line.position IN
            SELECT w.position FROM unnest(p_session) WITH ORDINALITY AS w(session_id, position)
             WHERE NOT w.session_id = ANY (v_opened) AND (p_positions IS NULL OR w.position = ANY (p_positions))
        LOOP
            v_lines := v_lines || v_line;
        END LOOP;
    END IF;
    v_line := NULL;
    v_line.outcome := 'created';
    v_line.started_at := v_now;
    RETURN v_lines || v_line;
END
$$;
