-- Records attempts before their requests are sent, under the fence of the executor. `found` is `begun` (may be sent),
-- `later` (due at `next_attempt_at`, which is NULL while an attempt of an earlier epoch is open), `over` (not pending,
-- or unknown) or `held` (another transaction holds the row lock).
--
-- While an attempt is open, its submission has no `next_attempt_at`, so no second attempt can begin. If an attempt of
-- this epoch is already open, it is returned as `begun`: the executor never begins an attempt of a submission that it
-- is sending, so the answer to the call that began the open attempt must have been lost.
--
-- The gateways of the submissions in `p_early` have begun to recover: attempts of these submissions begin before the
-- submissions are due, unless the pause is binding. Such an attempt stores when its submission would have been due
-- (`was_due_at`), so that a repeated call returns the same time.
--
-- The start of an attempt is never before the time at which its submission was accepted or last changed by a command
-- (such as a retry), even if the clock was stepped back. Otherwise tenure_finish_attempts_1 would treat the submission
-- as retried by hand during the attempt.
--
-- Order: check the fence (which locks the lease), lock the rows that no other transaction holds, read the clock, check
-- the fence again, write.
CREATE OR REPLACE FUNCTION tenure_begin_attempts_1(
    p_name text, p_holder text, p_epoch bigint, p_submission uuid[], p_early uuid[] DEFAULT '{}')
RETURNS TABLE (
    submission_id uuid, found text, number int, failures int, unknowns int, was_due_at timestamptz,
    next_attempt_at timestamptz, now timestamptz)
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
    -- The lease may have expired since the first check. Once the lease has expired, no attempt may be returned as
    -- begun.
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    WITH begun AS (
        -- plan: begin
        UPDATE submissions s SET attempts = s.attempts + 1, next_attempt_at = NULL
         WHERE s.submission_id = ANY (v_held) AND s.next_attempt_at <= v_now
        RETURNING s.submission_id, s.attempts, s.last_modified_at
        -- plan end
    )
    INSERT INTO submission_attempts (submission_id, number, epoch, holder, started_at)
    SELECT b.submission_id, b.attempts, p_epoch, p_holder, greatest(v_now, b.last_modified_at) FROM begun b;
    IF cardinality(p_early) > 0 THEN
        WITH waiting AS (
            -- plan: waiting
            SELECT s.submission_id, s.next_attempt_at FROM submissions s
             WHERE s.submission_id = ANY (p_early) AND s.submission_id = ANY (v_held) AND s.next_attempt_at > v_now
               AND NOT s.pause_is_binding
            -- plan end
        ), begun AS (
            UPDATE submissions s SET attempts = s.attempts + 1, next_attempt_at = NULL
              FROM waiting w WHERE s.submission_id = w.submission_id
            RETURNING s.submission_id, s.attempts, s.last_modified_at, w.next_attempt_at AS was_due_at
        )
        INSERT INTO submission_attempts (submission_id, number, epoch, holder, started_at, was_due_at)
        SELECT b.submission_id, b.attempts, p_epoch, p_holder, greatest(v_now, b.last_modified_at), b.was_due_at
          FROM begun b;
    END IF;
    -- The LIMIT clauses make PostgreSQL look up each row by its primary key, even in a plan that it made while the
    -- tables were empty. Without them, such a plan reads both tables completely for each row.
    RETURN QUERY
        -- plan: result
        SELECT w.submission_id,
               CASE WHEN s.state IS DISTINCT FROM 'pending' THEN 'over'
                    WHEN NOT w.submission_id = ANY (v_held) THEN 'held'
                    WHEN a.number IS NULL THEN 'later' ELSE 'begun' END,
               a.number, s.failures, coalesce(s.unknowns, 0), a.was_due_at, s.next_attempt_at, v_now
          FROM unnest(p_submission) AS w(submission_id)
          LEFT JOIN LATERAL (
               SELECT j.* FROM submissions j WHERE j.submission_id = w.submission_id LIMIT 1) s ON true
          LEFT JOIN LATERAL (
               SELECT j.* FROM submission_attempts j
                WHERE j.submission_id = s.submission_id AND j.number = s.attempts LIMIT 1) a
            ON a.outcome IS NULL AND a.epoch = p_epoch
        -- plan end
    ;
END
$$;
