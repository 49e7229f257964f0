-- What a session that lived for so many microseconds has used, in millionths, rounded half even. `meter.py` says the same in
-- one line; here no step may pass 64 bits, so whole periods of 30 days and whole factors are taken out first.
--
-- One expression of its arguments: where these are plain columns, PostgreSQL puts it in the place of the call. It then takes
-- 0.15 µs; with numeric it was 1.2.
CREATE FUNCTION tenure_usage_1(p_microseconds bigint, p_factor bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT p_factor * (p_microseconds / 2592000000000)
         + (p_factor / 1000000 * (p_microseconds % 2592000000000)) / 2592000
         + ((p_factor / 1000000 * (p_microseconds % 2592000000000)) % 2592000 * 1000000
            + p_factor % 1000000 * (p_microseconds % 2592000000000)) / 2592000000000
         -- Twice the rest, and one more if what is rounded is odd: only then is a half rounded up.
         + CASE WHEN 2 * (((p_factor / 1000000 * (p_microseconds % 2592000000000)) % 2592000 * 1000000
                           + p_factor % 1000000 * (p_microseconds % 2592000000000)) % 2592000000000)
                     + (p_factor * (p_microseconds / 2592000000000)
                        + (p_factor / 1000000 * (p_microseconds % 2592000000000)) / 2592000
                        + ((p_factor / 1000000 * (p_microseconds % 2592000000000)) % 2592000 * 1000000
                           + p_factor % 1000000 * (p_microseconds % 2592000000000)) / 2592000000000) % 2
                     > 2592000000000
                THEN 1 ELSE 0 END
$$;

-- statement-break

-- Cuts windows up to the last instant of the grid. Every session write holds the cut lock shared until it has committed, so
-- alone under it nothing is under way: what was stamped before the cut is there, and what comes later is stamped after it,
-- since tenure_write_now() never gives an instant before the last cut. The lock is asked for briefly: all writers queue
-- behind whoever waits for it.
--
-- No window crosses a UTC midnight: after a pause there are as many as that takes, at most p_limit at a time. Nothing is cut
-- if the clock has not come to the next instant of the grid, or was stepped back behind the last cut.
CREATE FUNCTION tenure_cut_usage_1(
    p_name text, p_holder text, p_epoch bigint, p_interval bigint, p_factor_1 bigint, p_factor_2 bigint, p_factor_3 bigint,
    p_contract text, p_limit int)
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
    PERFORM set_config('lock_timeout', '200ms', true);
    PERFORM pg_advisory_xact_lock(7305808868231127649);
    v_now := tenure_now();
    v_grid := timestamptz 'epoch'
        + ((extract(epoch FROM v_now) * 1000000)::bigint / p_interval * p_interval) * interval '1 microsecond';
    SELECT i.installation_id, i.last_cut_at, i.last_window_id INTO v_installation, v_from, v_window FROM installation i;
    IF v_from >= v_grid THEN
        RETURN QUERY SELECT v_now, v_from, 0;
        RETURN;
    END IF;
    SELECT e.* INTO v_era FROM usage_eras e ORDER BY e.era DESC LIMIT 1;
    IF (v_era.factor_1, v_era.factor_2, v_era.factor_3) IS DISTINCT FROM (p_factor_1, p_factor_2, p_factor_3) THEN
        v_era := ROW(coalesce(v_era.era, 0) + 1, v_from, p_factor_1, p_factor_2, p_factor_3);
        INSERT INTO usage_eras VALUES (v_era.*);
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

-- statement-break

-- Saves chunks of a window, numbered from p_from on, and what is to be sent for each; with the last of them, the sums of the
-- window. What was saved before, by a call of which the answer was lost, is left as it is.
CREATE FUNCTION tenure_save_chunks_1(
    p_name text, p_holder text, p_epoch bigint, p_window bigint, p_from int, p_first uuid[], p_last uuid[], p_sessions int[],
    p_usage bigint[], p_submission uuid[], p_complete boolean)
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
        INSERT INTO submissions (
            submission_id, gateway, caller, idempotency_key, delivery_key, digest, contract, state, attempts, failures,
            next_attempt_at, created_at, last_modified_at)
        SELECT c.submission_id, 'usages', 'tenure', k.key, k.key, '', v_window.contract, 'pending', 0, 0, v_now, v_now, v_now
          FROM unnest(p_submission) WITH ORDINALITY AS c(submission_id, position),
               LATERAL (SELECT concat_ws('-', v_window.installation_id, p_window, p_from + c.position - 1) AS key) k
         WHERE v_window.contract IS NOT NULL;
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

-- statement-break

-- Stores the digest of each body before it is sent for the first time, and tells whether what was stored is this one.
CREATE FUNCTION tenure_seal_chunks_1(p_name text, p_holder text, p_epoch bigint, p_submission uuid[], p_digest bytea[])
RETURNS TABLE (submission_id uuid, same boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    -- plan: seal
    UPDATE usage_chunks c SET digest = d.digest
      FROM unnest(p_submission, p_digest) AS d(submission_id, digest)
     WHERE c.submission_id = d.submission_id AND c.submission_id IS NOT NULL AND c.digest IS NULL
    -- plan end
    ;
    RETURN QUERY
        -- plan: tell
        SELECT c.submission_id, c.digest = d.digest
          FROM unnest(p_submission, p_digest) AS d(submission_id, digest)
          JOIN usage_chunks c ON c.submission_id = d.submission_id AND c.submission_id IS NOT NULL
        -- plan end
    ;
END
$$;

-- statement-break

-- As tenure_finish_attempts_1, which instances of the version before still call, and what a delivery makes of chunks and
-- windows. The one executor finishes attempts one batch after the other; the window's row keeps it and whoever saves the last
-- chunks from overlooking each other.
CREATE FUNCTION tenure_finish_attempts_2(
    p_name text, p_holder text, p_epoch bigint, p_submission uuid[], p_number int[], p_outcome text[], p_status int[],
    p_error text[], p_counts boolean[], p_pause bigint[])
RETURNS TABLE (submission_id uuid, state text, next_attempt_at timestamptz)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_delivered uuid[];
    v_windows bigint[];
BEGIN
    RETURN QUERY SELECT f.* FROM tenure_finish_attempts_1(
        p_name, p_holder, p_epoch, p_submission, p_number, p_outcome, p_status, p_error, p_counts, p_pause) f;
    v_now := tenure_now();
    v_delivered := ARRAY(
        -- plan: arrived
        SELECT e.submission_id FROM unnest(p_submission) AS e(submission_id)
         -- OFFSET 0, here and below: else all of the gateway's, or all that is undelivered, are read and compared.
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
    UPDATE usage_chunks c SET delivered_at = coalesce(c.delivered_at, v_now)
      FROM unnest(v_delivered) AS d(submission_id)
     WHERE c.submission_id = d.submission_id AND c.submission_id IS NOT NULL
    -- plan end
    ;
    -- plan: delivered
    UPDATE usage_windows w SET delivered_at = v_now
     WHERE w.window_id = ANY (v_windows) AND w.chunked_at IS NOT NULL
       AND NOT EXISTS (SELECT FROM usage_chunks c WHERE c.window_id = w.window_id AND c.delivered_at IS NULL OFFSET 0)
    -- plan end
    ;
END
$$;

-- statement-break

-- As tenure_begin_attempts_1, but no attempt begins before its submission was accepted or commanded, whatever the clock says: what
-- was commanded after an attempt had begun is taken for retried by tenure_finish_attempts_1, and if the clock was stepped back,
-- that was all that had been accepted before.
CREATE FUNCTION tenure_begin_attempts_2(p_name text, p_holder text, p_epoch bigint, p_submission uuid[])
RETURNS TABLE (submission_id uuid, found text, number int, failures int, next_attempt_at timestamptz, now timestamptz)
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
    -- Once more: while it waited, the lease may have run out, and nothing may be told to have begun after that.
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
    RETURN QUERY
        -- plan: tell
        SELECT w.submission_id,
               CASE WHEN s.state IS DISTINCT FROM 'pending' THEN 'over' WHEN NOT w.submission_id = ANY (v_held) THEN 'held'
                    WHEN a.number IS NULL THEN 'later' ELSE 'begun' END,
               a.number, s.failures, s.next_attempt_at, v_now
          FROM unnest(p_submission) AS w(submission_id)
          LEFT JOIN submissions s ON s.submission_id = w.submission_id
          LEFT JOIN submission_attempts a
            ON a.submission_id = s.submission_id AND a.number = s.attempts AND a.outcome IS NULL AND a.epoch = p_epoch
        -- plan end
    ;
END
$$;

-- statement-break

-- As tenure_command_submissions_1, but usage cannot be cancelled, and what is retried during an attempt is so after its beginning,
-- whatever the clock says.
CREATE FUNCTION tenure_command_submissions_2(p_command text, p_submission uuid[])
RETURNS TABLE (submission_id uuid, done boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_usage uuid[];
BEGIN
    v_usage := CASE WHEN p_command = 'cancel' THEN ARRAY(
        -- plan: usage
        SELECT u.submission_id FROM unnest(p_submission) AS u(submission_id)
         -- OFFSET 0: else all of the gateway's are read, and compared with these.
         CROSS JOIN LATERAL (SELECT s.gateway FROM submissions s WHERE s.submission_id = u.submission_id OFFSET 0) AS s
         WHERE s.gateway = 'usages'
        -- plan end
    ) ELSE '{}' END;
    RETURN QUERY SELECT c.* FROM tenure_command_submissions_1(
        p_command, ARRAY(SELECT s FROM unnest(p_submission) AS s WHERE s <> ALL (v_usage))) c;
    RETURN QUERY SELECT u, false FROM unnest(v_usage) AS u;
    IF p_command = 'retry' THEN
        -- plan: after
        UPDATE submissions s SET last_modified_at = a.started_at + interval '1 microsecond'
          FROM unnest(p_submission) AS r(submission_id), submission_attempts a
         WHERE s.submission_id = r.submission_id AND a.submission_id = s.submission_id AND a.number = s.attempts
           AND a.outcome IS NULL AND s.last_modified_at <= a.started_at
        -- plan end
        ;
    END IF;
END
$$;

-- statement-break

-- Deletes windows that ended long ago, with their chunks, from the oldest on, for as long as they are delivered or were not to
-- be; then sessions that closed before the windows which are kept begin. So a window that is there can always be rendered.
CREATE FUNCTION tenure_prune_usage_1(p_name text, p_holder text, p_epoch bigint, p_limit int, p_kept bigint)
RETURNS TABLE (chunks int, windows int, sessions int)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_last_cut timestamptz;
    v_kept_from timestamptz;
    v_end bigint;
    v_chunks int;
    v_windows int;
    v_sessions int;
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
    DELETE FROM usage_chunks d
     WHERE (d.window_id, d.chunk) IN (
        SELECT c.window_id, c.chunk FROM usage_chunks c
         WHERE c.window_id < v_end ORDER BY c.window_id, c.chunk LIMIT p_limit);
    GET DIAGNOSTICS v_chunks = ROW_COUNT;
    DELETE FROM usage_windows d
     WHERE d.window_id < least(v_end, (SELECT c.window_id FROM usage_chunks c ORDER BY c.window_id LIMIT 1));
    GET DIAGNOSTICS v_windows = ROW_COUNT;
    -- The last cut before the windows, in a statement of its own: what is cut meanwhile begins there.
    SELECT i.last_cut_at, i.usage_kept_from INTO v_last_cut, v_kept_from FROM installation i;
    IF v_windows > 0 THEN
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
    GET DIAGNOSTICS v_sessions = ROW_COUNT;
    -- Last: a cut would wait for this row, and all session writes behind it.
    IF v_windows > 0 THEN
        UPDATE installation SET usage_kept_from = v_kept_from;
    END IF;
    RETURN QUERY SELECT v_chunks, v_windows, v_sessions;
END
$$;
