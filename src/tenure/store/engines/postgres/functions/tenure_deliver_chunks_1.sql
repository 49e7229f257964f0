-- Marks chunks as delivered if their submissions are delivered, and stores whether each has a receipt. Then marks as
-- delivered the windows that are completely divided and whose chunks are all delivered. The caller has locked the
-- submissions.
--
-- Only one executor finishes attempts, one batch after the other. Another transaction may save the last chunks of a
-- window at the same time. Both transactions lock the window, so the later one sees the writes of the earlier one.
CREATE OR REPLACE FUNCTION tenure_deliver_chunks_1(p_submission uuid[], p_receipt boolean[], p_now timestamptz)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_delivered uuid[];
    v_windows bigint[];
BEGIN
    v_delivered := ARRAY(
        -- plan: arrived
        SELECT e.submission_id FROM unnest(p_submission) AS e(submission_id)
         -- OFFSET 0, here and below, avoids a plan that reads all submissions of the gateway or all undelivered chunks.
         CROSS JOIN LATERAL (
               SELECT s.gateway, s.state FROM submissions s WHERE s.submission_id = e.submission_id OFFSET 0) AS s
         WHERE s.gateway = 'usages' AND s.state = 'delivered'
        -- plan end
    );
    v_windows := ARRAY(
        -- plan: windows
        SELECT w.window_id FROM usage_windows w
         WHERE w.window_id IN (
               SELECT c.window_id FROM unnest(v_delivered) AS d(submission_id)
                CROSS JOIN LATERAL (
                      SELECT n.window_id, n.delivered_at FROM usage_chunks n
                       WHERE n.submission_id = d.submission_id AND n.submission_id IS NOT NULL OFFSET 0) AS c
                WHERE c.delivered_at IS NULL)
         ORDER BY w.window_id FOR NO KEY UPDATE
        -- plan end
    );
    IF cardinality(v_windows) = 0 THEN
        RETURN;
    END IF;
    -- plan: chunks
    UPDATE usage_chunks c
       SET delivered_at = coalesce(c.delivered_at, p_now),
           has_receipt = CASE WHEN c.delivered_at IS NULL THEN d.receipt ELSE c.has_receipt END
      FROM unnest(p_submission, p_receipt) AS d(submission_id, receipt)
     WHERE c.submission_id = d.submission_id AND c.submission_id IS NOT NULL AND d.submission_id = ANY (v_delivered)
    -- plan end
    ;
    -- plan: delivered
    UPDATE usage_windows w SET delivered_at = p_now
     WHERE w.window_id = ANY (v_windows) AND w.chunked_at IS NOT NULL
       AND NOT EXISTS (SELECT FROM usage_chunks c WHERE c.window_id = w.window_id AND c.delivered_at IS NULL OFFSET 0)
    -- plan end
    ;
END
$$;
