-- Accepts submissions, each once per caller, gateway and idempotency key. Returns no row for a submission that this
-- call inserted. For every other submission, it returns the one that is already stored under the same caller, gateway
-- and key. `same` is true if the given and the stored payload have the same digest. `accepted` is true if the given and
-- the stored id are the same: then an earlier try of this request inserted the submission, and the response was lost.
--
-- The function inserts in the order of the keys, so that two batches with the same keys do not deadlock. The statement
-- after the insert finds and locks the stored submissions. This statement has a new snapshot, so it sees submissions
-- that another batch committed after the insert began.
CREATE OR REPLACE FUNCTION tenure_accept_submissions_1(
    p_submission uuid[], p_gateway text[], p_caller text[], p_key text[], p_payload bytea[], p_digest bytea[],
    p_contract text[], p_request text[], p_traceparent text[])
RETURNS TABLE ("position" int, submission_id uuid, state text, same boolean, accepted boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := tenure_now();
    v_new uuid[] := '{}';
    v_found uuid[];
BEGIN
    LOOP
        WITH made AS (
            INSERT INTO submissions (
                submission_id, gateway, caller, idempotency_key, delivery_key, payload, digest, contract, state,
                attempts, failures, next_attempt_at, created_at, last_modified_at, request_id, traceparent)
            SELECT w.submission_id, w.gateway, w.caller, w.key, w.submission_id::text, w.payload, w.digest, w.contract,
                   'pending', 0, 0, v_now, v_now, v_now, w.request_id, w.traceparent
              FROM unnest(p_submission, p_gateway, p_caller, p_key, p_payload, p_digest, p_contract, p_request,
                          p_traceparent)
                   AS w(submission_id, gateway, caller, key, payload, digest, contract, request_id, traceparent)
             WHERE NOT w.submission_id = ANY (v_new)
             ORDER BY w.caller, w.gateway, w.key
            ON CONFLICT (caller, gateway, idempotency_key) DO NOTHING
            RETURNING submissions.submission_id
        )
        SELECT v_new || coalesce(array_agg(m.submission_id), '{}') INTO v_new FROM made m;
        EXIT WHEN cardinality(v_new) = cardinality(p_submission);
        v_found := ARRAY(
            -- plan: lock
            SELECT w.submission_id
              FROM unnest(p_submission, p_caller, p_gateway, p_key) AS w(submission_id, caller, gateway, key)
              JOIN submissions s ON s.caller = w.caller AND s.gateway = w.gateway AND s.idempotency_key = w.key
             WHERE NOT w.submission_id = ANY (v_new)
               FOR KEY SHARE OF s
            -- plan end
        );
        -- If a submission was pruned between the two statements, its key is free again: retry the insert.
        EXIT WHEN cardinality(v_new) + cardinality(v_found) = cardinality(p_submission);
    END LOOP;
    IF cardinality(v_new) < cardinality(p_submission) THEN
        RETURN QUERY
            -- plan: found
            SELECT w.position::int, s.submission_id, s.state::text, s.digest = w.digest,
                   s.submission_id = w.submission_id
              FROM unnest(p_submission, p_caller, p_gateway, p_key, p_digest)
                   WITH ORDINALITY AS w(submission_id, caller, gateway, key, digest, position)
              JOIN submissions s ON s.caller = w.caller AND s.gateway = w.gateway AND s.idempotency_key = w.key
             WHERE NOT w.submission_id = ANY (v_new)
            -- plan end
        ;
    END IF;
END
$$;
