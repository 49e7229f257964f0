-- The first instant of the grid after `p_at`: multiples of the interval since 1970-01-01T00:00Z.
CREATE FUNCTION tenure_grid_after_1(p_interval bigint, p_at timestamptz)
RETURNS timestamptz
LANGUAGE sql STABLE
AS $$
    SELECT p_at + (p_interval - (extract(epoch FROM p_at) * 1000000)::bigint % p_interval) * interval '1 microsecond'
$$;

-- statement-break

-- What an instance knows about its jobs. A changed interval holds at once; whether a job is paused is told only when its row
-- is made.
CREATE FUNCTION tenure_register_jobs_1(p_name text[], p_interval bigint[], p_lock_timeout bigint[], p_paused boolean[])
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz := tenure_now();
BEGIN
    INSERT INTO jobs AS j (
        name, interval_microseconds, lock_timeout_microseconds, next_run_at, run_count, failures_in_a_row, paused)
    SELECT r.name, r.interval, r.lock_timeout, tenure_grid_after_1(r.interval, v_now), 0, 0, r.paused
      FROM unnest(p_name, p_interval, p_lock_timeout, p_paused) AS r(name, interval, lock_timeout, paused)
     -- Instances that start together must not wait for each other crosswise.
     ORDER BY r.name
    ON CONFLICT (name) DO UPDATE
       SET interval_microseconds = excluded.interval_microseconds,
           lock_timeout_microseconds = excluded.lock_timeout_microseconds,
           next_run_at = CASE WHEN j.interval_microseconds = excluded.interval_microseconds THEN j.next_run_at
                              ELSE least(j.next_run_at, excluded.next_run_at) END
     WHERE (j.interval_microseconds, j.lock_timeout_microseconds)
           <> (excluded.interval_microseconds, excluded.lock_timeout_microseconds);
END
$$;

-- statement-break

-- Begins a run of a job that is due and whose lock is free. Lock before job, as when a run is finished.
--
-- `p_attempt` recognises its own work after a lost answer. A run that is still open under the lock's last epoch was
-- abandoned: its holder died, or its lock was taken from it.
CREATE FUNCTION tenure_begin_run_1(p_job text, p_holder text, p_attempt uuid)
RETURNS TABLE (
    found text, epoch bigint, started_at timestamptz, expires_at timestamptz, tick_at timestamptz,
    lock_timeout_microseconds bigint, failures_in_a_row int, reclaimed_epoch bigint, reclaimed_holder text)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_lease leases;
    v_job jobs;
    v_now timestamptz := tenure_now();
    v_tick_at timestamptz;
    v_reclaimed_epoch bigint;
    v_reclaimed_holder text;
BEGIN
    -- A first look that locks nothing and makes no row.
    IF NOT EXISTS (
        SELECT FROM jobs j
         WHERE j.name = p_job AND (j.retry_at IS NULL OR j.retry_at <= v_now)
           AND (j.requested_at IS NOT NULL OR (NOT j.paused AND j.next_run_at <= v_now)))
       AND NOT EXISTS (SELECT FROM leases l WHERE l.name = 'job:' || p_job AND l.attempt = p_attempt)
    THEN
        RETURN QUERY SELECT 'idle', NULL::bigint, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, NULL::bigint,
                            NULL::int, NULL::bigint, NULL::text;
        RETURN;
    END IF;
    v_lease := tenure_lock_lease_1('job:' || p_job);
    SELECT * INTO v_job FROM jobs j WHERE j.name = p_job FOR UPDATE;
    v_now := tenure_now();
    IF NOT v_lease.released AND v_lease.expires_at > v_now THEN
        RETURN QUERY
            SELECT CASE WHEN v_lease.attempt = p_attempt THEN 'begun' ELSE 'held' END, v_lease.epoch, r.started_at,
                   v_lease.expires_at, r.tick_at, v_job.lock_timeout_microseconds, v_job.failures_in_a_row, NULL::bigint,
                   NULL::text
              FROM job_runs r WHERE r.job = p_job AND r.epoch = v_lease.epoch;
        RETURN;
    END IF;
    IF v_job.retry_at > v_now OR (v_job.requested_at IS NULL AND (v_job.paused OR v_job.next_run_at > v_now)) THEN
        RETURN QUERY SELECT 'idle', NULL::bigint, NULL::timestamptz, NULL::timestamptz, NULL::timestamptz, NULL::bigint,
                            NULL::int, NULL::bigint, NULL::text;
        RETURN;
    END IF;
    UPDATE job_runs r
       SET ended_at = v_lease.expires_at, outcome = 'abandoned',
           error = CASE WHEN v_lease.released THEN 'its lock was taken from it' ELSE 'its lock ran out' END
     WHERE r.job = p_job AND r.epoch = v_lease.epoch AND r.ended_at IS NULL
    RETURNING r.epoch, r.holder INTO v_reclaimed_epoch, v_reclaimed_holder;
    v_lease := tenure_begin_epoch_1(v_lease, p_holder, p_attempt, v_job.lock_timeout_microseconds, v_now);
    v_tick_at := CASE WHEN v_job.next_run_at <= v_now THEN v_job.next_run_at END;
    INSERT INTO job_runs (job, epoch, holder, tick_at, requested_at, started_at)
    VALUES (p_job, v_lease.epoch, p_holder, v_tick_at, v_job.requested_at, v_now);
    UPDATE jobs j
       SET last_start_at = v_now, run_count = j.run_count + 1,
           failures_in_a_row = j.failures_in_a_row + CASE WHEN v_reclaimed_epoch IS NULL THEN 0 ELSE 1 END,
           last_error = CASE WHEN v_reclaimed_epoch IS NULL THEN j.last_error
                             ELSE 'abandoned by ' || v_reclaimed_holder END
     WHERE j.name = p_job
    RETURNING * INTO v_job;
    RETURN QUERY SELECT 'begun', v_lease.epoch, v_now, v_lease.expires_at, v_tick_at, v_job.lock_timeout_microseconds,
                        v_job.failures_in_a_row, v_reclaimed_epoch, v_reclaimed_holder;
END
$$;

-- statement-break

-- Ends a run and releases its lock. What succeeded has done all ticks up to its start; what failed keeps its tick; what was
-- abandoned leaves the job as it is, to be run again at once.
CREATE FUNCTION tenure_finish_run_1(
    p_name text, p_holder text, p_epoch bigint, p_outcome text, p_error text, p_retry bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_lease leases;
    v_run job_runs;
    v_now timestamptz;
BEGIN
    SELECT * INTO v_lease FROM leases l
     WHERE l.name = p_name AND l.holder = p_holder AND l.epoch = p_epoch FOR UPDATE;
    SELECT * INTO v_run FROM job_runs r WHERE r.job = substr(p_name, 5) AND r.epoch = p_epoch;
    v_now := tenure_now();
    IF v_lease.released AND v_run.ended_at IS NOT NULL THEN
        RETURN;  -- carried out before, and the answer was lost
    END IF;
    IF v_lease.name IS NULL OR v_lease.released OR v_lease.resigned OR v_lease.expires_at <= v_now OR v_run.job IS NULL THEN
        RAISE EXCEPTION 'tenure: % does not hold the lease % in epoch %', p_holder, p_name, p_epoch USING ERRCODE = 'TL001';
    END IF;
    UPDATE job_runs r SET ended_at = v_now, outcome = p_outcome, error = p_error
     WHERE r.job = v_run.job AND r.epoch = p_epoch;
    UPDATE jobs j
       SET next_run_at = CASE WHEN p_outcome = 'succeeded'
                              THEN greatest(j.next_run_at, tenure_grid_after_1(j.interval_microseconds, v_run.started_at))
                              ELSE j.next_run_at END,
           retry_at = CASE WHEN p_outcome = 'failed' THEN v_now + p_retry * interval '1 microsecond' END,
           requested_at = CASE WHEN p_outcome <> 'abandoned' AND j.requested_at = v_run.requested_at THEN NULL
                               ELSE j.requested_at END,
           last_success_at = CASE WHEN p_outcome = 'succeeded' THEN v_now ELSE j.last_success_at END,
           last_duration_microseconds = (extract(epoch FROM v_now - v_run.started_at) * 1000000)::bigint,
           failures_in_a_row = CASE p_outcome WHEN 'succeeded' THEN 0 WHEN 'failed' THEN j.failures_in_a_row + 1
                                              ELSE j.failures_in_a_row END,
           last_error = CASE p_outcome WHEN 'succeeded' THEN NULL WHEN 'failed' THEN p_error ELSE j.last_error END
     WHERE j.name = v_run.job;
    UPDATE leases l SET expires_at = v_now, released = true WHERE l.name = p_name;
    IF p_outcome = 'abandoned' THEN
        PERFORM pg_notify('tenure', 'leases');
    END IF;
END
$$;

-- statement-break

-- run: now, even if it is paused or waits after a failure. pause: also forgets a run that was asked for and has not begun.
CREATE FUNCTION tenure_command_job_1(p_job text, p_command text)
RETURNS SETOF jobs
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN QUERY
        UPDATE jobs j
           SET requested_at = CASE p_command WHEN 'run' THEN tenure_now() WHEN 'pause' THEN NULL ELSE j.requested_at END,
               retry_at = CASE p_command WHEN 'run' THEN NULL ELSE j.retry_at END,
               paused = CASE p_command WHEN 'pause' THEN true WHEN 'resume' THEN false ELSE j.paused END
         WHERE j.name = p_job
        RETURNING j.*;
    IF p_command <> 'pause' THEN
        PERFORM pg_notify('tenure', 'leases');
    END IF;
END
$$;

-- statement-break

-- One batch of what is kept long enough. Under the fence of the job that does it.
CREATE FUNCTION tenure_prune_1(
    p_name text, p_holder text, p_epoch bigint, p_limit int, p_history bigint, p_runs bigint)
RETURNS TABLE (lease_history int, job_runs int)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_history int;
    v_runs int;
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    v_now := tenure_now();
    DELETE FROM lease_history d
     WHERE (d.name, d.epoch) IN (
        SELECT h.name, h.epoch FROM lease_history h
         WHERE h.ended_at < v_now - p_history * interval '1 microsecond' LIMIT p_limit);
    GET DIAGNOSTICS v_history = ROW_COUNT;
    DELETE FROM job_runs d
     WHERE (d.job, d.epoch) IN (
        SELECT r.job, r.epoch FROM job_runs r
         WHERE r.started_at < v_now - p_runs * interval '1 microsecond' AND r.ended_at IS NOT NULL
         ORDER BY r.started_at LIMIT p_limit);
    GET DIAGNOSTICS v_runs = ROW_COUNT;
    RETURN QUERY SELECT v_history, v_runs;
END
$$;

-- statement-break

-- The sweep, under the fence of its job: see tenure_expire_1, which instances of the version before still call without one.
CREATE FUNCTION tenure_expire_2(p_name text, p_holder text, p_epoch bigint, p_limit int)
RETURNS TABLE (session_id uuid, reason text, ended_at timestamptz, looked_at int)
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    RETURN QUERY SELECT * FROM tenure_expire_1(p_limit);
END
$$;
