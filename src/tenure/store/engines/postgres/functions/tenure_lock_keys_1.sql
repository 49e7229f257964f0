-- Locks the row of the installation, so that only one transaction at a time changes the API keys or the signing keys. A
-- cut may wait for this row while it holds the cut lock, and all session writes then wait for the cut. So a transaction
-- that holds the row must be short. The only locks for which it may wait are those of keys whose last use is being
-- written (tenure_touch_keys_1), and that write never waits for a lock.
CREATE OR REPLACE FUNCTION tenure_lock_keys_1() RETURNS void
LANGUAGE sql VOLATILE
AS 'SELECT 1 FROM installation FOR NO KEY UPDATE';
