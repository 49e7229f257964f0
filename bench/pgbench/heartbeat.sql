-- The textbook transaction: an update of one of ten thousand sessions, which commits on its own.
\set session random(1, 10000)
UPDATE sessions
   SET last_heartbeat_at = clock_timestamp(),
       deadline_at = least(term_ends_at, clock_timestamp() + lease_microseconds * interval '1 microsecond')
 WHERE session_id = ('00000000-0000-7000-8000-' || lpad(to_hex(:session::int), 12, '0'))::uuid
   AND state IN ('created', 'active') AND deadline_at > clock_timestamp();
