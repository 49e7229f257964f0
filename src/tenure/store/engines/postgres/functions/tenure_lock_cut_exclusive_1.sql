-- Acquires the cut lock exclusively: waits for all session writes in progress, and blocks new ones until the
-- transaction ends. It waits 200 ms at most, because new session writes queue behind it meanwhile. After that it raises
-- an error, and the caller retries.
CREATE OR REPLACE FUNCTION tenure_lock_cut_exclusive_1() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM set_config('lock_timeout', '200ms', true);
    PERFORM pg_advisory_xact_lock(7305808868231127649);
END
$$;
