-- The textbook transaction: begin, select for update, insert, commit. Each transaction inserts a session of a new user
-- into Tenure's table `sessions`.
\set a random(0, 2147483647)
\set b random(0, 2147483647)
BEGIN;
SELECT session_id, kind FROM sessions
 WHERE capacity_id = '00000000-0000-4000-8000-000000000001' AND user_object_id = md5(:a::text || :b::text)::uuid
   AND closed_at IS NULL
   FOR UPDATE;
INSERT INTO sessions (session_id, tenant_object_id, user_object_id, capacity_id, started_at, term_ends_at, deadline_at,
                      check_at, last_heartbeat_at, kind, state, lapse_reason)
VALUES (gen_random_uuid(), '00000000-0000-4000-8000-0000000000aa', md5(:a::text || :b::text)::uuid,
        '00000000-0000-4000-8000-000000000001', now(), now() + interval '30 days', now() + interval '30 days',
        now() + interval '30 days', now(), 1, 'created', 'EXPIRED');
COMMIT;
