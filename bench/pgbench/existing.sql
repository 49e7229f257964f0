-- The textbook transaction: begin, select for update, commit. It selects the session of one of ten thousand users, who
-- all have a live session.
\set user random(1, 10000)
BEGIN;
SELECT session_id, kind, started_at, term_ends_at, deadline_at, last_heartbeat_at, last_activity_at, modified_at
  FROM sessions
 WHERE capacity_id = '00000000-0000-4000-8000-000000000001' AND closed_at IS NULL
   AND user_object_id = ('00000000-0000-4000-8000-' || lpad(to_hex(:user::int), 12, '0'))::uuid
   FOR UPDATE;
COMMIT;
