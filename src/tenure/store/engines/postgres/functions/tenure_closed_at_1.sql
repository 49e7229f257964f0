-- Returns the end of a session that is ended now: its deadline if that has passed, otherwise now, but at least one
-- microsecond after its start. `end_now` in deadlines.py computes the same. PostgreSQL inlines this function, like
-- tenure_deadline_1.
CREATE OR REPLACE FUNCTION tenure_closed_at_1(p_started_at timestamptz, p_deadline_at timestamptz, p_now timestamptz)
RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT least(p_deadline_at, greatest(p_now, p_started_at + interval '1 microsecond'))
$$;
