-- Deletes one batch of old usage, under the fence of job `prune`. First the function deletes the oldest windows with
-- their chunks, and stops before the first window that must be kept. A window may be deleted if it is divided into
-- chunks, ended more than `p_kept` microseconds ago, and is delivered or has no contract (it was cut without a
-- gateway). Then the function deletes the sessions that closed before the start of the first window that is kept. So
-- every window that exists can be rendered. Returns the number of rows deleted from each table.
--
-- The function writes the row of the installation last, so that it holds this row only briefly: a cut waits for this
-- row, and all session writes wait for the cut.
CREATE OR REPLACE FUNCTION tenure_prune_usage_1(p_name text, p_holder text, p_epoch bigint, p_limit int, p_kept bigint)
RETURNS TABLE (chunks int, windows int, sessions int)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_last_cut timestamptz;
    v_kept_from timestamptz;
    v_end bigint;
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    v_now := tenure_now();
    -- plan: end
    SELECT coalesce(min(w.window_id) FILTER (WHERE NOT w.over), max(w.window_id) + 1, 0) INTO v_end
      FROM (SELECT o.window_id,
                   o.ended_at < v_now - p_kept * interval '1 microsecond' AND o.chunked_at IS NOT NULL
                   AND (o.delivered_at IS NOT NULL OR o.contract IS NULL) AS over
              FROM usage_windows o ORDER BY o.window_id LIMIT p_limit) w
    -- plan end
    ;
    -- Another transaction may be sending one of these windows, if it has read the clock before the window passed its
    -- retention time. Such a transaction holds the window. Once it has committed, the window has a contract and is kept.
    PERFORM FROM usage_windows w WHERE w.window_id < v_end ORDER BY w.window_id FOR UPDATE;
    SELECT coalesce(min(w.window_id), v_end) INTO v_end
      FROM usage_windows w WHERE w.window_id < v_end AND w.contract IS NOT NULL AND w.delivered_at IS NULL;
    DELETE FROM usage_chunks d
     WHERE (d.window_id, d.chunk) IN (
        SELECT c.window_id, c.chunk FROM usage_chunks c
         WHERE c.window_id < v_end ORDER BY c.window_id, c.chunk LIMIT p_limit);
    GET DIAGNOSTICS chunks = ROW_COUNT;
    DELETE FROM usage_windows d
     WHERE d.window_id < least(v_end, (SELECT c.window_id FROM usage_chunks c ORDER BY c.window_id LIMIT 1));
    GET DIAGNOSTICS windows = ROW_COUNT;
    -- Reads the last cut in an earlier statement than the windows. A window that is cut in between starts at that cut
    -- or after it, so the sessions of this window are kept.
    SELECT i.last_cut_at, i.usage_kept_from INTO v_last_cut, v_kept_from FROM installation i;
    IF windows > 0 THEN
        SELECT coalesce((SELECT w.started_at FROM usage_windows w ORDER BY w.window_id LIMIT 1), v_last_cut)
          INTO v_kept_from;
    END IF;
    DELETE FROM sessions d
     WHERE d.session_id = ANY (ARRAY(
        -- plan: sessions
        SELECT s.session_id FROM sessions s
         WHERE s.closed_at < v_kept_from AND s.state = 'closed' ORDER BY s.closed_at LIMIT p_limit
        -- plan end
     ));
    GET DIAGNOSTICS sessions = ROW_COUNT;
    IF windows > 0 THEN
        UPDATE installation SET usage_kept_from = v_kept_from;
    END IF;
    RETURN NEXT;
END
$$;
