-- Returns the first tick after the instant `p_at`. `grid_after` in job_grid.py computes the same.
CREATE OR REPLACE FUNCTION tenure_grid_after_1(p_interval bigint, p_at timestamptz)
RETURNS timestamptz
LANGUAGE sql STABLE
AS $$
    SELECT tenure_grid_at_1(p_interval, p_at) + p_interval * interval '1 microsecond'
$$;
