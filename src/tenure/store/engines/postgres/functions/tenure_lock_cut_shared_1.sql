-- Acquires the cut lock in shared mode until the end of the transaction. Every write of sessions acquires it first,
-- before it locks a row and before it reads the clock. A cut, or a change of a capacity, acquires the same lock
-- exclusively (tenure_lock_cut_exclusive_1).
CREATE OR REPLACE FUNCTION tenure_lock_cut_shared_1() RETURNS void
LANGUAGE sql VOLATILE
AS 'SELECT pg_advisory_xact_lock_shared(7305808868231127649)';
