-- Acquires the cut lock in shared mode, as tenure_lock_cut_shared_1 does, if that is possible without waiting. Returns
-- whether it did.
CREATE OR REPLACE FUNCTION tenure_try_lock_cut_shared_1() RETURNS boolean
LANGUAGE sql VOLATILE
AS 'SELECT pg_try_advisory_xact_lock_shared(7305808868231127649)';
