-- Sends windows that were cut without a gateway: gives each window the contract, and inserts a submission for each of
-- its chunks. Returns the windows that it sends. It skips a window that already has a contract, is not divided yet, is
-- past its retention time (its chunks may be partly deleted) or does not have the given number of chunks. A window that
-- was sent has a contract, so a repeated call, or a concurrent one, does not send it again. Adds the number of windows
-- that it sends to the audit entry `p_draft`.
--
-- `p_windows` and `p_chunks` are the windows and the number of chunks of each. `p_submission` lists the ids of the
-- submissions: first those for the chunks of the first window, then those for the second one, and so on.
--
-- Order: lock the windows in the order of their ids, read the clock, write. While the windows are locked, no other
-- transaction changes those that are divided and have no contract, or their chunks.
CREATE OR REPLACE FUNCTION tenure_send_windows_1(
    p_contract text, p_kept bigint, p_windows bigint[], p_chunks int[], p_submission uuid[],
    p_draft jsonb)
RETURNS TABLE (window_id bigint)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_window usage_windows;
    v_position int;
    v_before int := 0;
    v_ids uuid[];
    v_sent int := 0;
BEGIN
    PERFORM FROM usage_windows w WHERE w.window_id = ANY (p_windows) ORDER BY w.window_id FOR NO KEY UPDATE;
    v_now := tenure_now();
    FOR v_position IN 1 .. cardinality(p_windows) LOOP
        v_ids := p_submission[v_before + 1 : v_before + p_chunks[v_position]];
        v_before := v_before + p_chunks[v_position];
        SELECT w.* INTO v_window FROM usage_windows w
         WHERE w.window_id = p_windows[v_position] AND w.contract IS NULL AND w.chunked_at IS NOT NULL
           AND w.ended_at >= v_now - p_kept * interval '1 microsecond'
           AND p_chunks[v_position] = (SELECT count(*) FROM usage_chunks c WHERE c.window_id = w.window_id);
        CONTINUE WHEN NOT FOUND;
        v_window.contract := p_contract;
        UPDATE usage_windows w
           SET contract = p_contract, delivered_at = CASE WHEN p_chunks[v_position] = 0 THEN v_now END
         WHERE w.window_id = v_window.window_id;
        UPDATE usage_chunks c SET submission_id = s.submission_id
          FROM unnest(v_ids) WITH ORDINALITY AS s(submission_id, chunk)
         WHERE c.window_id = v_window.window_id AND c.chunk = s.chunk;
        PERFORM tenure_submit_chunks_1(v_window, 1, v_ids, v_now);
        window_id := v_window.window_id;
        v_sent := v_sent + 1;
        RETURN NEXT;
    END LOOP;
    IF v_sent > 0 THEN
        PERFORM tenure_audit_1(
            v_now, p_draft, p_draft ->> 'action', p_draft ->> 'target', p_draft ->> 'detail', v_sent);
    END IF;
END
$$;
