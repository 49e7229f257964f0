-- Retries or cancels submissions, and returns for each one that exists whether it is now pending (after `retry`) or
-- cancelled (after `cancel`). `retry` makes a submission pending and due now, unless the submission is delivered, and
-- sets its failures and unknowns to 0. If an attempt is open, the submission becomes due only when that attempt has
-- failed. `cancel` cancels a submission that is pending or failed. Usage cannot be cancelled. With `p_owner`, the
-- function treats submissions of other callers as unknown.
--
-- Adds the number of submissions that it changes to the audit entry `p_draft`. A retry does not count as a change in
-- two cases: the submission is pending and due and has no failures, no unknowns and no binding pause; or an attempt of
-- the submission is open, and the submission was already retried during that attempt.
--
-- If an attempt is open, a retry sets `last_modified_at` to a time after the start of that attempt, even if the clock
-- was stepped back, because tenure_finish_attempts_1 compares the two.
--
-- Order: lock the submissions in the order of their ids, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_command_submissions_1(
    p_command text, p_submission uuid[], p_owner text, p_draft jsonb)
RETURNS TABLE (submission_id uuid, done boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_changes int;
BEGIN
    IF p_owner IS NOT NULL THEN
        p_submission := ARRAY(
            -- plan: owned
            SELECT s.submission_id FROM submissions s
             WHERE s.submission_id = ANY (p_submission) AND (s.caller = p_owner) IS TRUE
            -- plan end
        );
    END IF;
    PERFORM tenure_lock_submissions_1(p_submission);
    v_now := tenure_now();
    IF p_command = 'retry' THEN
        SELECT count(*) INTO v_changes FROM (
            -- plan: changed
            SELECT s.submission_id FROM submissions s
              LEFT JOIN submission_attempts a
                ON a.submission_id = s.submission_id AND a.number = s.attempts AND a.outcome IS NULL
             WHERE s.submission_id = ANY (p_submission) AND s.state <> 'delivered'
               AND NOT (s.ended_at IS NULL AND s.failures = 0 AND s.unknowns = 0 AND NOT s.pause_is_binding
                        AND coalesce(s.next_attempt_at <= v_now, s.last_modified_at > a.started_at, false))
            -- plan end
        ) AS c;
        -- plan: retry
        UPDATE submissions s
           SET state = 'pending', failures = 0, unknowns = 0, pause_is_binding = false, ended_at = NULL,
               last_modified_at = greatest(v_now, (
                   SELECT a.started_at + interval '1 microsecond' FROM submission_attempts a
                    WHERE a.submission_id = s.submission_id AND a.number = s.attempts AND a.outcome IS NULL)),
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
         WHERE s.submission_id = ANY (p_submission) AND s.state IN ('pending', 'failed') AND s.gateway <> 'usages'
        -- plan end
        ;
        GET DIAGNOSTICS v_changes = ROW_COUNT;
    END IF;
    IF v_changes > 0 THEN
        PERFORM tenure_audit_1(
            v_now, p_draft, p_draft ->> 'action', p_draft ->> 'target', p_draft ->> 'detail', v_changes);
    END IF;
    RETURN QUERY
        -- plan: result
        SELECT s.submission_id, s.state = CASE p_command WHEN 'retry' THEN 'pending' ELSE 'cancelled' END
          FROM submissions s WHERE s.submission_id = ANY (p_submission)
        -- plan end
    ;
END
$$;
