-- A submission is pending for as long as it has no ended_at, and only then can it have a next_attempt_at; an attempt is open
-- for as long as it has no outcome. Where rows are found by their ids it is said in these words: with those of a partial
-- index, a plan that is made while the tables are empty may be one for that index, and is kept.

-- Accepts submissions, each once for its caller, gateway and key. Of those that it did not make just now it tells what is
-- there under their keys: whether it has the same payload, by its digest, and whether it is this very wish's, of which the
-- answer was lost.
--
-- In the order of the keys, so that two batches with the same ones do not wait for each other crosswise. What another
-- batch has accepted meanwhile is seen by the second statement, which has a snapshot of its own.
CREATE FUNCTION tenure_accept_submissions_1(
    p_submission uuid[], p_gateway text[], p_caller text[], p_key text[], p_payload bytea[], p_digest bytea[],
    p_contract text[])
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
                submission_id, gateway, caller, idempotency_key, delivery_key, payload, digest, contract, state, attempts,
                failures, next_attempt_at, created_at, last_modified_at)
            SELECT w.submission_id, w.gateway, w.caller, w.key, w.submission_id::text, w.payload, w.digest, w.contract,
                   'pending', 0, 0, v_now, v_now, v_now
              FROM unnest(p_submission, p_gateway, p_caller, p_key, p_payload, p_digest, p_contract)
                   AS w(submission_id, gateway, caller, key, payload, digest, contract)
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
        -- What was pruned in between leaves its key free: once more.
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

-- statement-break

-- Records attempts before they are sent, under the fence of the executor. `begun` may be sent; `later` is due at
-- `next_attempt_at` only; `over` needs no more attempts; `held` is what somebody else is changing at this moment.
--
-- While an attempt is under way its submission has no next one: no second attempt can begin beside it. An attempt of this
-- epoch that is open already is told as begun, too: the executor asks for nothing that it is sending, so it is one of which
-- it never got the answer.
CREATE FUNCTION tenure_begin_attempts_1(p_name text, p_holder text, p_epoch bigint, p_submission uuid[])
RETURNS TABLE (submission_id uuid, found text, number int, failures int, next_attempt_at timestamptz, now timestamptz)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_held uuid[];
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    v_held := ARRAY(
        -- plan: lock
        SELECT s.submission_id FROM submissions s WHERE s.submission_id = ANY (p_submission)
         ORDER BY s.submission_id FOR NO KEY UPDATE SKIP LOCKED
        -- plan end
    );
    v_now := tenure_now();
    -- Once more: while it waited, the lease may have run out, and nothing may be told to have begun after that.
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    WITH begun AS (
        -- plan: begin
        UPDATE submissions s SET attempts = s.attempts + 1, next_attempt_at = NULL
         WHERE s.submission_id = ANY (v_held) AND s.next_attempt_at <= v_now
        RETURNING s.submission_id, s.attempts
        -- plan end
    )
    INSERT INTO submission_attempts (submission_id, number, epoch, holder, started_at)
    SELECT b.submission_id, b.attempts, p_epoch, p_holder, v_now FROM begun b;
    RETURN QUERY
        -- plan: tell
        SELECT w.submission_id,
               CASE WHEN s.state IS DISTINCT FROM 'pending' THEN 'over' WHEN NOT w.submission_id = ANY (v_held) THEN 'held'
                    WHEN a.number IS NULL THEN 'later' ELSE 'begun' END,
               a.number, s.failures, s.next_attempt_at, v_now
          FROM unnest(p_submission) AS w(submission_id)
          LEFT JOIN submissions s ON s.submission_id = w.submission_id
          LEFT JOIN submission_attempts a
            ON a.submission_id = s.submission_id AND a.number = s.attempts AND a.outcome IS NULL AND a.epoch = p_epoch
        -- plan end
    ;
END
$$;

-- statement-break

-- Closes attempts with what became of them, under the fence of the executor. An accepted attempt makes its submission
-- delivered even if it was cancelled meanwhile; anything else moves only what is still pending. `p_counts`: whether it
-- counts against the limit; `p_pause`: until the next one, NULL if there is to be none.
--
-- What was retried by hand while its attempt was under way is due as soon as that has failed, and counts from 0.
--
-- A repetition after a lost answer finds the attempts closed, and changes nothing twice.
CREATE FUNCTION tenure_finish_attempts_1(
    p_name text, p_holder text, p_epoch bigint, p_submission uuid[], p_number int[], p_outcome text[], p_status int[],
    p_error text[], p_counts boolean[], p_pause bigint[])
RETURNS TABLE (submission_id uuid, state text, next_attempt_at timestamptz)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_closed uuid[];
    v_started timestamptz[];
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    PERFORM
        -- plan: lock
        s.submission_id FROM submissions s WHERE s.submission_id = ANY (p_submission) ORDER BY s.submission_id FOR NO KEY UPDATE
        -- plan end
    ;
    v_now := tenure_now();
    WITH closed AS (
        -- plan: close
        UPDATE submission_attempts a
           SET ended_at = v_now, outcome = e.outcome, status = e.status, error = e.error
          FROM unnest(p_submission, p_number, p_outcome, p_status, p_error) AS e(submission_id, number, outcome, status, error)
         WHERE a.submission_id = e.submission_id AND a.number = e.number AND a.outcome IS NULL
        RETURNING a.submission_id, a.started_at
        -- plan end
    )
    SELECT array_agg(c.submission_id), array_agg(c.started_at) INTO v_closed, v_started FROM closed c;
    -- plan: move
    UPDATE submissions s
       SET state = CASE WHEN e.outcome = 'delivered' THEN 'delivered' WHEN s.state <> 'pending' THEN s.state
                        WHEN e.pause IS NULL AND s.last_modified_at <= c.started_at THEN 'failed' ELSE 'pending' END,
           next_attempt_at = CASE WHEN e.outcome = 'delivered' OR s.state <> 'pending' THEN NULL
                                  WHEN s.last_modified_at > c.started_at THEN v_now
                                  ELSE v_now + e.pause * interval '1 microsecond' END,
           failures = s.failures + CASE WHEN e.counts AND s.last_modified_at <= c.started_at THEN 1 ELSE 0 END,
           last_error = CASE WHEN e.outcome = 'delivered' THEN NULL ELSE e.error END,
           ended_at = CASE WHEN e.outcome = 'delivered' THEN v_now WHEN s.state <> 'pending' THEN s.ended_at
                           WHEN e.pause IS NULL AND s.last_modified_at <= c.started_at THEN v_now END
      FROM unnest(p_submission, p_outcome, p_error, p_counts, p_pause) AS e(submission_id, outcome, error, counts, pause)
      JOIN unnest(v_closed, v_started) AS c(submission_id, started_at) ON c.submission_id = e.submission_id
     WHERE s.submission_id = e.submission_id
    -- plan end
    ;
    RETURN QUERY
        -- plan: tell
        SELECT s.submission_id, s.state::text, s.next_attempt_at FROM submissions s WHERE s.submission_id = ANY (p_submission)
        -- plan end
    ;
END
$$;

-- statement-break

-- Closes what attempts of earlier epochs have left open: nobody can say what became of them. They do not count against the
-- limit, and their submissions are due at once.
CREATE FUNCTION tenure_close_unknown_1(p_name text, p_holder text, p_epoch bigint, p_limit int)
RETURNS int
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_left uuid[];
    v_closed uuid[];
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    v_left := ARRAY(
        -- plan: left
        SELECT a.submission_id FROM submission_attempts a WHERE a.ended_at IS NULL AND a.epoch < p_epoch LIMIT p_limit
        -- plan end
    );
    PERFORM
        -- plan: lock
        s.submission_id FROM submissions s WHERE s.submission_id = ANY (v_left) ORDER BY s.submission_id FOR NO KEY UPDATE
        -- plan end
    ;
    v_now := tenure_now();
    -- Of these only: a call that was given up on, and that waited for a row meanwhile, must not make due what is being sent.
    WITH closed AS (
        -- plan: close
        UPDATE submission_attempts a
           SET ended_at = v_now, outcome = 'unknown', error = 'whoever sent it did not say what became of it'
         WHERE a.submission_id = ANY (v_left) AND a.outcome IS NULL AND a.epoch < p_epoch
        RETURNING a.submission_id
        -- plan end
    )
    SELECT coalesce(array_agg(c.submission_id), '{}') INTO v_closed FROM closed c;
    -- plan: due
    UPDATE submissions s SET next_attempt_at = v_now WHERE s.submission_id = ANY (v_closed) AND s.ended_at IS NULL
    -- plan end
    ;
    RETURN cardinality(v_left);
END
$$;

-- statement-break

-- Says of what is due why it is not sent.
CREATE FUNCTION tenure_explain_waiting_1(p_name text, p_holder text, p_epoch bigint, p_submission uuid[], p_reason text)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    PERFORM
        -- plan: lock
        s.submission_id FROM submissions s WHERE s.submission_id = ANY (p_submission) ORDER BY s.submission_id FOR NO KEY UPDATE
        -- plan end
    ;
    -- plan: explain
    UPDATE submissions s SET last_error = p_reason
     WHERE s.submission_id = ANY (p_submission) AND s.ended_at IS NULL AND s.last_error IS DISTINCT FROM p_reason
    -- plan end
    ;
END
$$;

-- statement-break

-- retry: due now, with all its attempts before it again, whether it waits, was given up or cancelled; if an attempt is under
-- way, when that has failed. cancel: what is not delivered. Tells which of them are so now, and the state of the others.
CREATE FUNCTION tenure_command_submissions_1(p_command text, p_submission uuid[])
RETURNS TABLE (submission_id uuid, done boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM
        -- plan: lock
        s.submission_id FROM submissions s WHERE s.submission_id = ANY (p_submission) ORDER BY s.submission_id FOR NO KEY UPDATE
        -- plan end
    ;
    v_now := tenure_now();
    IF p_command = 'retry' THEN
        -- plan: retry
        UPDATE submissions s
           SET state = 'pending', failures = 0, ended_at = NULL, last_modified_at = v_now,
               next_attempt_at = CASE WHEN (
                   SELECT a.outcome IS NULL FROM submission_attempts a
                    WHERE a.submission_id = s.submission_id AND a.number = s.attempts) THEN NULL ELSE v_now END
         WHERE s.submission_id = ANY (p_submission) AND s.state <> 'delivered'
        -- plan end
        ;
    ELSE
        -- plan: cancel
        UPDATE submissions s
           SET state = 'cancelled', next_attempt_at = NULL, ended_at = v_now, last_modified_at = v_now
         WHERE s.submission_id = ANY (p_submission) AND s.state IN ('pending', 'failed')
        -- plan end
        ;
    END IF;
    RETURN QUERY
        -- plan: tell
        SELECT s.submission_id, s.state = CASE p_command WHEN 'retry' THEN 'pending' ELSE 'cancelled' END
          FROM submissions s WHERE s.submission_id = ANY (p_submission)
        -- plan end
    ;
END
$$;

-- statement-break

-- As tenure_prune_1, which instances of the version before still call, and submissions that are delivered or cancelled.
CREATE FUNCTION tenure_prune_2(
    p_name text, p_holder text, p_epoch bigint, p_limit int, p_history bigint, p_runs bigint, p_submissions bigint)
RETURNS TABLE (lease_history int, job_runs int, submissions int)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_old uuid[];
    v_history int;
    v_runs int;
BEGIN
    SELECT p.lease_history, p.job_runs INTO v_history, v_runs
      FROM tenure_prune_1(p_name, p_holder, p_epoch, p_limit, p_history, p_runs) p;
    v_now := tenure_now();
    v_old := ARRAY(
        -- plan: old
        SELECT s.submission_id FROM submissions s
         WHERE s.state IN ('delivered', 'cancelled') AND s.ended_at < v_now - p_submissions * interval '1 microsecond'
         ORDER BY s.ended_at LIMIT p_limit FOR UPDATE SKIP LOCKED
        -- plan end
    );
    DELETE FROM submission_attempts a WHERE a.submission_id = ANY (v_old);
    DELETE FROM submissions s WHERE s.submission_id = ANY (v_old);
    RETURN QUERY SELECT v_history, v_runs, cardinality(v_old);
END
$$;
