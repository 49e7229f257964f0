-- Closes attempts that earlier epochs left open, with the outcome `unknown`, under the fence of the executor. They do
-- not count against the limit, and their submissions are due at once. Returns how many attempts it found, at most
-- `p_limit`. The caller repeats the call until none are left.
--
-- Order: the lease; a read without locks; the rows of the submissions, by id; the clock; the writes. Attempts are
-- checked again under the lock of their submission: another call may have closed one since the read and begun the next.
CREATE OR REPLACE FUNCTION tenure_close_orphaned_attempts_1(p_name text, p_holder text, p_epoch bigint, p_limit int)
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
        -- plan: orphaned
        SELECT a.submission_id FROM submission_attempts a WHERE a.ended_at IS NULL AND a.epoch < p_epoch LIMIT p_limit
        -- plan end
    );
    PERFORM tenure_lock_submissions_1(v_left);
    v_now := tenure_now();
    WITH closed AS (
        -- plan: close
        UPDATE submission_attempts a
           SET ended_at = v_now, outcome = 'unknown', error = 'the executor stopped before it recorded the outcome'
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
