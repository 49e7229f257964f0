-- Records, under the fence of the executor, the reason why pending submissions are not sent although they are due.
--
-- Order: check the fence (which locks the lease), lock the submissions in the order of their ids, write.
CREATE OR REPLACE FUNCTION tenure_note_waiting_reason_1(
    p_name text, p_holder text, p_epoch bigint, p_submission uuid[], p_reason text)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    PERFORM tenure_lock_submissions_1(p_submission);
    -- plan: note
    UPDATE submissions s SET last_error = p_reason
     WHERE s.submission_id = ANY (p_submission) AND s.ended_at IS NULL AND s.last_error IS DISTINCT FROM p_reason
    -- plan end
    ;
END
$$;
