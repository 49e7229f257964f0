-- Locks the rows of submissions in the order of their ids, and waits for rows that other transactions hold. While the
-- rows are locked FOR NO KEY UPDATE, tenure_accept_submissions_1 can still lock them FOR KEY SHARE.
--
-- A submission is pending while it has no `ended_at`, and only a pending submission can have a `next_attempt_at`. An
-- attempt is open while it has no outcome. Functions that find rows by id use these conditions instead of the condition
-- of a partial index. Otherwise PostgreSQL might choose that index while the tables are empty, and keep using it later.
CREATE OR REPLACE FUNCTION tenure_lock_submissions_1(p_submission uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM
        -- plan: lock
        s.submission_id FROM submissions s WHERE s.submission_id = ANY (p_submission)
          ORDER BY s.submission_id FOR NO KEY UPDATE
        -- plan end
    ;
END
$$;
