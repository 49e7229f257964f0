-- Deletes up to `p_limit` rows of a mark of usage, under the fence of the job that writes marks. A call that finds
-- fewer than `p_limit` rows also deletes the mark itself. Until then the mark is incomplete, so no sum uses it. Returns
-- the number of deleted rows.
CREATE OR REPLACE FUNCTION tenure_delete_mark_1(
    p_name text, p_holder text, p_epoch bigint, p_at timestamptz, p_limit int)
RETURNS int
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_deleted int;
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    UPDATE usage_marks m SET state = 'incomplete' WHERE m.marked_at = p_at;
    DELETE FROM usage_mark_sums d
     WHERE (d.marked_at, d.tenant_object_id, d.capacity_id, d.kind) IN (
        SELECT s.marked_at, s.tenant_object_id, s.capacity_id, s.kind FROM usage_mark_sums s
         WHERE s.marked_at = p_at ORDER BY s.tenant_object_id, s.capacity_id, s.kind LIMIT p_limit
        );
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    IF v_deleted < p_limit THEN
        DELETE FROM usage_marks m WHERE m.marked_at = p_at;
    END IF;
    RETURN v_deleted;
END
$$;
