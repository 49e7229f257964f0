-- Inserts the submissions of consecutive chunks of a window, from chunk `p_first` on. Does nothing if the window has no
-- contract. The caller has locked the window.
CREATE OR REPLACE FUNCTION tenure_submit_chunks_1(
    p_window usage_windows, p_first int, p_submission uuid[], p_now timestamptz) RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO submissions (
        submission_id, gateway, caller, idempotency_key, delivery_key, digest, contract, state, attempts, failures,
        next_attempt_at, created_at, last_modified_at)
    SELECT c.submission_id, 'usages', 'tenure', k.key, k.key, '', (p_window).contract, 'pending', 0, 0,
           p_now, p_now, p_now
      FROM unnest(p_submission) WITH ORDINALITY AS c(submission_id, position),
           LATERAL (SELECT concat_ws('-', (p_window).installation_id, (p_window).window_id, p_first + c.position - 1)
                           AS key) k
     WHERE (p_window).contract IS NOT NULL
$$;
