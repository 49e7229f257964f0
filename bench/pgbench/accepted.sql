-- Each transaction inserts one row like the row of an accepted submission.
\set a random(0, 2147483647)
\set b random(0, 2147483647)
INSERT INTO submissions (
    submission_id, gateway, caller, idempotency_key, delivery_key, payload, digest, contract, state, attempts, failures,
    next_attempt_at, created_at, last_modified_at)
VALUES (md5(:a::text || :b::text)::uuid, 'bench', '', md5(:b::text || :a::text), md5(:a::text || :b::text),
    convert_to('{"event":"opened","text":"' || repeat('x', 170) || '"}', 'UTF8'),
    decode(repeat('ab', 32), 'hex'),
    '{"schedule_seconds":[5.0,30.0,120.0,600.0,3600.0,21600.0],"max_attempts":20,"already_have":[409],"timeout_seconds":30.0}',
    'pending', 0, 0, now(), now(), now());
