-- Cuts windows up to the last tick at or before now, under the fence of job `emit-usage`. Every session write holds the
-- cut lock (shared) until it commits. So under the exclusive lock, no session write is in progress: all writes with a
-- timestamp before the cut are committed, and later writes get a timestamp at the cut or after it, because
-- tenure_write_now() returns no instant before the last cut. The function waits 200 ms at most for the exclusive lock.
-- Then it raises an error, and the caller retries.
--
-- No window crosses a UTC midnight. So if no window was cut for some days, the function cuts several windows, at most
-- `p_limit` per call. It cuts nothing if the clock has not reached the next tick, or was stepped back behind the last
-- cut. Changed factors begin a new era.
--
-- Order: check the fence (which locks the lease), acquire the cut lock exclusively, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_cut_usage_1(
    p_name text, p_holder text, p_epoch bigint, p_interval bigint,
    p_factor_1 bigint, p_factor_2 bigint, p_factor_3 bigint, p_contract text, p_limit int)
RETURNS TABLE (now timestamptz, last_cut_at timestamptz, windows int)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_grid timestamptz;
    v_from timestamptz;
    v_to timestamptz;
    v_installation uuid;
    v_window bigint;
    v_cut int := 0;
    v_era usage_eras;
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    PERFORM tenure_lock_cut_exclusive_1();
    v_now := tenure_now();
    v_grid := tenure_grid_at_1(p_interval, v_now);
    SELECT i.installation_id, i.last_cut_at, i.last_window_id INTO v_installation, v_from, v_window FROM installation i;
    IF v_from >= v_grid THEN
        RETURN QUERY SELECT v_now, v_from, 0;
        RETURN;
    END IF;
    SELECT e.* INTO v_era FROM usage_eras e ORDER BY e.era DESC LIMIT 1;
    IF (v_era.factor_1, v_era.factor_2, v_era.factor_3) IS DISTINCT FROM (p_factor_1, p_factor_2, p_factor_3) THEN
        v_era.era := coalesce(v_era.era, 0) + 1;
        INSERT INTO usage_eras (era, started_at, factor_1, factor_2, factor_3)
        VALUES (v_era.era, v_from, p_factor_1, p_factor_2, p_factor_3);
    END IF;
    WHILE v_from < v_grid AND v_cut < p_limit LOOP
        v_to := least(v_grid, date_trunc('day', v_from, 'UTC') + interval '24 hours');
        v_window := v_window + 1;
        v_cut := v_cut + 1;
        INSERT INTO usage_windows (window_id, installation_id, era, started_at, ended_at, cut_at, contract)
        VALUES (v_window, v_installation, v_era.era, v_from, v_to, v_now, p_contract);
        v_from := v_to;
    END LOOP;
    UPDATE installation SET last_cut_at = v_from, last_window_id = v_window;
    RETURN QUERY SELECT v_now, v_from, v_cut;
END
$$;
