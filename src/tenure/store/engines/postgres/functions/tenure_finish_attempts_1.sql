-- Closes attempts with their outcomes, under the fence of the executor, and returns the states of the submissions. A
-- delivered attempt makes its submission delivered even if the submission was cancelled during the attempt; any other
-- outcome changes the state only of a pending submission. `p_counts` is true if the attempt counts against
-- `max_attempts` of the contract, and `p_receipt` if the response named the digest of the body. `p_pause` is the number
-- of microseconds until the next attempt, NULL if there is none. If `p_binding` is true, no early attempt may begin
-- before the pause has passed. An `unknown` outcome is counted in `unknowns`. A call that is repeated after a lost
-- answer finds the attempts closed and changes nothing.
--
-- A submission that was retried by hand while its attempt was open (`last_modified_at` after the attempt's start) is
-- due at once if the attempt fails, and its failures and unknown outcomes count from 0.
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
    v_closed uuid[];
    v_started timestamptz[];
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    PERFORM tenure_lock_submissions_1(p_submission);
    v_now := tenure_now();
    -- ANY, here and below, avoids a plan, made while the tables were empty, that reads the whole table.
    WITH closed AS (
        -- plan: close
        UPDATE submission_attempts a
           SET ended_at = v_now, outcome = e.outcome, status = e.status, error = e.error, has_receipt = e.receipt
          FROM unnest(p_submission, p_number, p_outcome, p_status, p_error, p_receipt)
               AS e(submission_id, number, outcome, status, error, receipt)
         WHERE a.submission_id = ANY (p_submission)
           AND a.submission_id = e.submission_id AND a.number = e.number AND a.outcome IS NULL
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
           unknowns = s.unknowns
                      + CASE WHEN e.outcome = 'unknown' AND s.last_modified_at <= c.started_at THEN 1 ELSE 0 END,
           pause_is_binding = e.binding AND s.last_modified_at <= c.started_at,
           last_error = CASE WHEN e.outcome = 'delivered' THEN NULL ELSE e.error END,
           ended_at = CASE WHEN e.outcome = 'delivered' THEN v_now WHEN s.state <> 'pending' THEN s.ended_at
                           WHEN e.pause IS NULL AND s.last_modified_at <= c.started_at THEN v_now END
      FROM unnest(p_submission, p_outcome, p_error, p_counts, p_pause, p_binding)
           AS e(submission_id, outcome, error, counts, pause, binding)
      JOIN unnest(v_closed, v_started) AS c(submission_id, started_at) ON c.submission_id = e.submission_id
     WHERE s.submission_id = ANY (p_submission) AND s.submission_id = e.submission_id
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
