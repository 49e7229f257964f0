-- Saves rows of a mark of usage and the state of the mark, under the fence of the job that writes marks. Rows that
-- exist are not changed: the values of a mark are final, so a repeated call contains the same values. A mark that is
-- complete or skipped is not changed either.
CREATE OR REPLACE FUNCTION tenure_save_mark_1(
    p_name text, p_holder text, p_epoch bigint, p_at timestamptz, p_series int, p_state text, p_tenant uuid[],
    p_capacity uuid[], p_kind smallint[], p_usage bigint[], p_started bigint[], p_live int[])
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    INSERT INTO usage_marks (marked_at, series, state) VALUES (p_at, p_series, 'incomplete') ON CONFLICT DO NOTHING;
    PERFORM 1 FROM usage_marks m WHERE m.marked_at = p_at AND m.state = 'incomplete';
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO usage_mark_sums (marked_at, tenant_object_id, capacity_id, kind, usage_millionths, started, live)
    SELECT p_at, s.tenant, s.capacity, s.kind, s.usage, s.started, s.live
      FROM unnest(p_tenant, p_capacity, p_kind, p_usage, p_started, p_live)
           AS s(tenant, capacity, kind, usage, started, live)
    ON CONFLICT DO NOTHING;
    UPDATE usage_marks m SET series = p_series, state = p_state WHERE m.marked_at = p_at;
END
$$;
