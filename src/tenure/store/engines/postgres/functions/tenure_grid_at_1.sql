-- Returns the last tick at or before an instant. Ticks are the multiples of the interval since 1970-01-01T00:00Z.
-- `grid_at` in job_grid.py computes the same.
CREATE OR REPLACE FUNCTION tenure_grid_at_1(p_interval bigint, p_at timestamptz)
RETURNS timestamptz
LANGUAGE sql STABLE
AS $$
    SELECT p_at - ((extract(epoch FROM p_at) * 1000000)::bigint % p_interval) * interval '1 microsecond'
$$;
