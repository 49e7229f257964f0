-- Returns the reason with which a session lapses, as the one-letter code that the table stores. The reason names the
-- limit that sets the deadline. If several limits fall on the same instant, the first of term, lease and idle limit
-- determines the reason. The function takes the arguments of tenure_deadline_1, and PostgreSQL inlines it in the same
-- way.
CREATE OR REPLACE FUNCTION tenure_lapse_reason_1(
    p_term_ends_at timestamptz, p_last_heartbeat_at timestamptz, p_lease bigint,
    p_last_activity_at timestamptz, p_idle bigint)
RETURNS "char"
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT CASE tenure_deadline_1(p_term_ends_at, p_last_heartbeat_at, p_lease, p_last_activity_at, p_idle)
        WHEN p_term_ends_at THEN 'E'::"char"
        WHEN p_last_heartbeat_at + p_lease * interval '1 microsecond' THEN 'L'::"char"
        ELSE 'I'::"char"
    END
$$;
