-- Closes attempts with their outcomes, under the fence of the executor, and returns the states of the submissions. A
-- delivered attempt makes its submission delivered even if the submission was cancelled during the attempt; any other
-- outcome changes the state only of a pending submission. `p_counts` is true if the attempt counts against
-- `max_attempts` of the contract, and `p_receipt` if the response named the digest of the body. `p_pause` is the number
-- of microseconds until the next attempt, NULL if there is none. If `p_binding` is true, no early attempt may begin
-- before the pause has passed. An `unknown` outcome is counted in `unknowns`. A call that is repeated after a lost
-- answer finds the attempts closed and changes nothing.
--
-- A submission that was retried by hand while its attempt was open (`last_modified_at` after the attempt's start) is
-- due at once if the attempt fails. Its failures and unknown outcomes count from 0, and this attempt is not counted.
--
-- Order: check the fence (which locks the lease), lock the submissions in the order of their ids, read the clock,
-- write. Then tenure_deliver_chunks_1 locks and writes windows and chunks of usage.
CREATE OR REPLACE FUNCTION tenure_finish_attempts_1(
    p_name text, p_holder text, p_epoch bigint, p_submission uuid[], p_number int[], p_outcome text[], p_status int[],
    p_error text[], p_counts boolean[], p_pause bigint[], p_binding boolean[], p_receipt boolean[])
RETURNS TABLE (submission_id uuid, state text, next_attempt_at timestamptz)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_ended int[];
    v_started timestamptz[];
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    PERFORM tenure_lock_submissions_1(p_submission);
    v_now := tenure_now();
    -- Without ANY, here and below, PostgreSQL could use a plan that it made while the tables were empty, and that reads
    -- the whole table. The rows are joined with the batch by a nested loop that compares each row with every element of
    -- the batch. So the batch side of the join is kept narrow: it has subscripts, by which most values are read from
    -- the arrays.
    WITH closed AS (
        -- plan: close
        UPDATE submission_attempts a
           SET ended_at = v_now, outcome = p_outcome[e.at], status = p_status[e.at], error = p_error[e.at],
               has_receipt = p_receipt[e.at]
          FROM generate_subscripts(p_submission, 1) AS e(at)
         WHERE a.submission_id = ANY (p_submission)
           AND a.submission_id = p_submission[e.at] AND a.number = p_number[e.at] AND a.outcome IS NULL
        RETURNING e.at, a.started_at
        -- plan end
    )
    SELECT array_agg(c.at), array_agg(c.started_at) INTO v_ended, v_started FROM closed c;
    -- plan: move
    UPDATE submissions s
       SET state = CASE WHEN p_outcome[c.at] = 'delivered' THEN 'delivered' WHEN s.state <> 'pending' THEN s.state
                        WHEN p_pause[c.at] IS NULL AND s.last_modified_at <= c.started_at THEN 'failed'
                        ELSE 'pending' END,
           next_attempt_at = CASE WHEN p_outcome[c.at] = 'delivered' OR s.state <> 'pending' THEN NULL
                                  WHEN s.last_modified_at > c.started_at THEN v_now
                                  ELSE v_now + p_pause[c.at] * interval '1 microsecond' END,
           failures = s.failures + CASE WHEN p_counts[c.at] AND s.last_modified_at <= c.started_at THEN 1 ELSE 0 END,
           unknowns = s.unknowns + CASE WHEN p_outcome[c.at] = 'unknown' AND s.last_modified_at <= c.started_at THEN 1
                                        ELSE 0 END,
           pause_is_binding = p_binding[c.at] AND s.last_modified_at <= c.started_at,
           last_error = CASE WHEN p_outcome[c.at] = 'delivered' THEN NULL ELSE p_error[c.at] END,
           ended_at = CASE WHEN p_outcome[c.at] = 'delivered' THEN v_now WHEN s.state <> 'pending' THEN s.ended_at
                           WHEN p_pause[c.at] IS NULL AND s.last_modified_at <= c.started_at THEN v_now END
      FROM unnest(v_ended, v_started) AS c(at, started_at)
     WHERE s.submission_id = ANY (p_submission) AND s.submission_id = p_submission[c.at]
    -- plan end
    ;
    PERFORM tenure_deliver_chunks_1(p_submission, p_receipt, v_now);
    RETURN QUERY
        -- plan: result
        SELECT s.submission_id, s.state::text, s.next_attempt_at FROM submissions s
         WHERE s.submission_id = ANY (p_submission)
        -- plan end
    ;
END
$$;
