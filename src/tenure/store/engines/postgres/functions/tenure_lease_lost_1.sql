-- Raises the error of every fenced call whose lease is no longer held in the epoch of the fence. The function raises an
-- error and does not return a result, so that the caller cannot ignore it and the transaction is rolled back.
CREATE OR REPLACE FUNCTION tenure_lease_lost_1(p_name text, p_holder text, p_epoch bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RAISE EXCEPTION 'tenure: % does not hold the lease % in epoch %', p_holder, p_name, p_epoch USING ERRCODE = 'TL001';
END
$$;
