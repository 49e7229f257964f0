-- Returns the deadline of a session: the earliest of the end of its term, its last heartbeat plus its lease, and its
-- last activity plus its idle limit. A limit that is NULL does not count. `earliest` in deadlines.py computes the same.
--
-- PostgreSQL inlines this function, because it is one expression. It is declared STABLE, because adding an interval to
-- a timestamptz is STABLE, not IMMUTABLE.
CREATE OR REPLACE FUNCTION tenure_deadline_1(
    p_term_ends_at timestamptz, p_last_heartbeat_at timestamptz, p_lease bigint,
    p_last_activity_at timestamptz, p_idle bigint)
RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT least(
        p_term_ends_at,
        p_last_heartbeat_at + p_lease * interval '1 microsecond',
        p_last_activity_at + p_idle * interval '1 microsecond')
$$;
