-- Begins a run of a job that is due and whose lock is free: acquires the lock and records the run. `found` is `begun`,
-- `held` (the lock is not free) or `idle` (not due, or no such job); the other columns are set for `begun` only. If an
-- earlier call with the same `p_attempt` began a run and the answer was lost, this call returns that run as long as the
-- run still holds the lock, and `reclaimed_…` is NULL.
--
-- If the lock is free but a run under its last epoch is still open, that run was abandoned: the lock expired, or was
-- resigned. The abandoned run is recorded as `abandoned` and returned as `reclaimed_…`.
--
-- If the clock was stepped back behind ticks that are done (tenure_clock_is_behind_1) and the job is not paused, the
-- job's next tick becomes the last tick at or before now, and `clock_behind` returns the next tick from before this
-- change. From then on the ordinary rules apply: after a failure the tick stays the same, after a success the next tick
-- follows.
--
-- Order: read the clock and the rows without locks (so that an idle call writes nothing), lock the lease of the job,
-- lock the row of the job, read the clock again, write.
CREATE OR REPLACE FUNCTION tenure_begin_run_1(p_job text, p_holder text, p_attempt uuid)
RETURNS TABLE (
    found text, epoch bigint, started_at timestamptz, expires_at timestamptz, tick_at timestamptz,
    lock_timeout_microseconds bigint, failures_in_a_row int, reclaimed_epoch bigint, reclaimed_holder text,
    clock_behind timestamptz)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    -- The column `found`. It needs an alias, because plpgsql has a built-in variable with that name.
    v_found ALIAS FOR $4;
    v_lease leases;
    v_job jobs;
    v_now timestamptz := tenure_now();
BEGIN
    v_found := 'idle';
    IF NOT EXISTS (SELECT FROM jobs j WHERE j.name = p_job AND tenure_is_due_1(j, v_now))
       AND NOT EXISTS (SELECT FROM leases l WHERE l.name = 'job:' || p_job AND l.attempt = p_attempt)
    THEN
        RETURN NEXT;
        RETURN;
    END IF;
    v_lease := tenure_lock_lease_1('job:' || p_job);
    SELECT * INTO v_job FROM jobs j WHERE j.name = p_job FOR UPDATE;
    v_now := tenure_now();

    IF NOT v_lease.released AND v_lease.expires_at > v_now THEN
        v_found := 'held';
        SELECT r.started_at, r.tick_at, r.clock_behind INTO started_at, tick_at, clock_behind FROM job_runs r
         WHERE r.job = p_job AND r.epoch = v_lease.epoch AND v_lease.attempt = p_attempt;
        IF NOT FOUND THEN
            RETURN NEXT;
            RETURN;
        END IF;
    ELSIF NOT tenure_is_due_1(v_job, v_now) THEN
        RETURN NEXT;
        RETURN;
    ELSE
        UPDATE job_runs r
           SET ended_at = v_lease.expires_at, outcome = 'abandoned',
               error = CASE WHEN v_lease.released THEN 'its lock was resigned' ELSE 'its lock expired' END
         WHERE r.job = p_job AND r.epoch = v_lease.epoch AND r.ended_at IS NULL
        RETURNING r.epoch, r.holder INTO reclaimed_epoch, reclaimed_holder;
        v_lease := tenure_begin_epoch_1(v_lease, p_holder, p_attempt, v_job.lock_timeout_microseconds, v_now);
        IF NOT v_job.paused AND tenure_clock_is_behind_1(v_job, v_now) THEN
            clock_behind := v_job.next_run_at;
            v_job.next_run_at := tenure_grid_at_1(v_job.interval_microseconds, v_now);
        END IF;
        started_at := v_now;
        tick_at := CASE WHEN v_job.next_run_at <= v_now THEN v_job.next_run_at END;
        INSERT INTO job_runs (job, epoch, holder, tick_at, requested_at, started_at, clock_behind)
        VALUES (p_job, v_lease.epoch, p_holder, tick_at, v_job.requested_at, v_now, clock_behind);
        UPDATE jobs j
           SET next_run_at = v_job.next_run_at, last_start_at = v_now, run_count = j.run_count + 1,
               failures_in_a_row = j.failures_in_a_row + CASE WHEN reclaimed_epoch IS NULL THEN 0 ELSE 1 END,
               last_error = CASE WHEN reclaimed_epoch IS NULL THEN j.last_error
                                 ELSE 'abandoned by ' || reclaimed_holder END
         WHERE j.name = p_job
        RETURNING * INTO v_job;
    END IF;
    v_found := 'begun';
    epoch := v_lease.epoch;
    expires_at := v_lease.expires_at;
    lock_timeout_microseconds := v_job.lock_timeout_microseconds;
    failures_in_a_row := v_job.failures_in_a_row;
    RETURN NEXT;
END
$$;
