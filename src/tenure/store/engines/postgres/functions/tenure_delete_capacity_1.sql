-- Deletes the rules of a capacity under the exclusive cut lock, like tenure_put_capacity_1, which sets them. Returns
-- the deleted row, or no row if there were no rules.
CREATE OR REPLACE FUNCTION tenure_delete_capacity_1(p_capacity uuid)
RETURNS SETOF capacities
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM tenure_lock_cut_exclusive_1();
    RETURN QUERY DELETE FROM capacities c WHERE c.capacity_id = p_capacity RETURNING c.*;
END
$$;
