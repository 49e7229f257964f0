-- Acquires the cut lock in shared mode until the end of the transaction. Every function that opens, renews or ends
-- sessions acquires the cut lock before it locks a session and before it reads the clock for a write. A cut, an import
-- and a change of a capacity's rules acquire it exclusively (tenure_lock_cut_exclusive_1).
CREATE OR REPLACE FUNCTION tenure_lock_cut_shared_1() RETURNS void
LANGUAGE sql VOLATILE
AS 'SELECT pg_advisory_xact_lock_shared(7305808868231127649)';
