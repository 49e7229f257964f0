-- Retries or cancels submissions, and returns for each one that exists whether the command was carried out. `retry`
-- makes a submission pending and due now and sets its failures and unknowns to 0, in any state except delivered. If an attempt is
-- open, the submission becomes due when that attempt has failed. `cancel` cancels a submission that is pending or
-- failed. Usage cannot be cancelled.
--
-- A retry during an attempt gets a `last_modified_at` after the start of that attempt even if the clock was stepped
-- back: tenure_finish_attempts_1 compares the two.
--
-- Order: the rows of the submissions, by id; the clock; the writes.
CREATE OR REPLACE FUNCTION tenure_command_submissions_1(p_command text, p_submission uuid[])
RETURNS TABLE (submission_id uuid, done boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM tenure_lock_submissions_1(p_submission);
    v_now := tenure_now();
    IF p_command = 'retry' THEN
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
    END IF;
    RETURN QUERY
        -- plan: result
        SELECT s.submission_id, s.state = CASE p_command WHEN 'retry' THEN 'pending' ELSE 'cancelled' END
          FROM submissions s WHERE s.submission_id = ANY (p_submission)
        -- plan end
    ;
END
$$;
