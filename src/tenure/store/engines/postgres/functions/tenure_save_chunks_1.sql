-- Saves chunks of a window, numbered from `p_from` on, under the fence of the job that divides the window. If the
-- window has a contract, the function also inserts a submission for each chunk. With the last chunks (`p_complete`) the
-- function stores the sums of the window. If the chunk `p_from` exists already, because the response of an earlier call
-- was lost, no chunk is inserted or changed. A gap in the numbers is a mistake of the caller and raises an error.
--
-- Order: check the fence (which locks the lease), lock the window, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_save_chunks_1(
    p_name text, p_holder text, p_epoch bigint, p_window bigint, p_from int, p_first uuid[], p_last uuid[],
    p_sessions int[], p_usage bigint[], p_submission uuid[], p_complete boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_window usage_windows;
    v_saved int;
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    SELECT w.* INTO STRICT v_window FROM usage_windows w WHERE w.window_id = p_window FOR NO KEY UPDATE;
    IF v_window.chunked_at IS NOT NULL THEN
        RETURN;
    END IF;
    v_now := tenure_now();
    -- plan: saved
    SELECT coalesce(max(c.chunk), 0) INTO v_saved FROM usage_chunks c WHERE c.window_id = p_window
    -- plan end
    ;
    IF p_from > v_saved + 1 THEN
        RAISE EXCEPTION 'tenure: chunk % of window % would follow chunk %', p_from, p_window, v_saved;
    ELSIF p_from = v_saved + 1 THEN
        INSERT INTO usage_chunks (
            window_id, chunk, first_session_id, last_session_id, sessions, usage_millionths, submission_id)
        SELECT p_window, p_from + c.position::int - 1, c.first_id, c.last_id, c.sessions, c.usage,
               CASE WHEN v_window.contract IS NOT NULL THEN c.submission_id END
          FROM unnest(p_first, p_last, p_sessions, p_usage, p_submission)
               WITH ORDINALITY AS c(first_id, last_id, sessions, usage, submission_id, position);
        PERFORM tenure_submit_chunks_1(v_window, p_from, p_submission, v_now);
    END IF;
    IF p_complete THEN
        UPDATE usage_windows w
           SET chunked_at = v_now, sessions = t.sessions, usage_millionths = t.usage,
               delivered_at = CASE WHEN w.contract IS NOT NULL AND t.undelivered = 0 THEN v_now END
          FROM (SELECT coalesce(sum(c.sessions), 0) AS sessions, coalesce(sum(c.usage_millionths), 0) AS usage,
                       count(*) FILTER (WHERE c.delivered_at IS NULL) AS undelivered
                  FROM usage_chunks c WHERE c.window_id = p_window) t
         WHERE w.window_id = p_window;
    END IF;
END
$$;
