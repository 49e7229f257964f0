-- Inserts sessions for the open requests at the given positions (NULL: for all requests) and returns the ids of the
-- inserted sessions. All of them start at `p_now`. A request whose key is taken gets no session. If another transaction
-- is just taking the key, the insert waits until that transaction ends, and skips the request if it commits.
--
-- The function inserts in the order of the arrays. Callers sort the arrays by key, so that two batches do not deadlock.
-- A request without a lease gets the default lease and the default heartbeat. A request without an idle limit gets the
-- default idle limit.
CREATE OR REPLACE FUNCTION tenure_insert_sessions_1(
    p_positions int[], p_now timestamptz,
    p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[], p_session uuid[],
    p_lease bigint[], p_heartbeat bigint[], p_idle bigint[],
    p_term bigint, p_default_lease bigint, p_default_heartbeat bigint, p_default_idle bigint
) RETURNS uuid[]
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_term_ends_at timestamptz := p_now + p_term * interval '1 microsecond';
    v_opened uuid[];
BEGIN
    WITH opened AS (
        -- plan: insert
        INSERT INTO sessions (
            session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at, check_at,
            last_heartbeat_at,
            lease_microseconds, idle_microseconds, heartbeat_microseconds, kind, state, lapse_reason)
        SELECT w.session_id, w.tenant_object_id, w.user_object_id, w.capacity_id, p_now, v_term_ends_at,
               tenure_deadline_1(v_term_ends_at, p_now, w.lease, p_now, w.idle),
               tenure_deadline_1(v_term_ends_at, p_now, w.lease, p_now, w.idle),
               p_now,
               w.lease, w.idle, w.heartbeat, w.kind, 'created',
               tenure_lapse_reason_1(v_term_ends_at, p_now, w.lease, p_now, w.idle)
          FROM (SELECT u.session_id, u.tenant_object_id, u.user_object_id, u.capacity_id, u.kind,
                       coalesce(u.lease, p_default_lease) AS lease,
                       CASE WHEN u.lease IS NULL THEN p_default_heartbeat ELSE u.heartbeat END AS heartbeat,
                       coalesce(u.idle, p_default_idle) AS idle
                  FROM unnest(p_session, p_tenant, p_user, p_capacity, p_kind, p_lease, p_heartbeat, p_idle)
                       WITH ORDINALITY AS u(session_id, tenant_object_id, user_object_id, capacity_id, kind,
                                            lease, heartbeat, idle, position)
                 WHERE p_positions IS NULL OR u.position = ANY (p_positions)) AS w
        ON CONFLICT (capacity_id, user_object_id) WHERE closed_at IS NULL DO NOTHING
        RETURNING session_id
        -- plan end
    )
    SELECT array_agg(o.session_id) INTO v_opened FROM opened AS o;
    RETURN coalesce(v_opened, '{}');
END
$$;
