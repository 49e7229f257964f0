-- Ends a run and releases its lock. After a success, all ticks up to the start of the run are done, and `next_run_at`
-- never moves to an earlier tick. After a failure, the tick of the run is still due, and the job is retried after
-- `p_retry` microseconds. After an abandoned run, the job is still due and runs again at once. A repeated call after a
-- lost answer finds that the run has ended and changes nothing.
--
-- If the clock is stepped back behind the start of the run, the recorded duration is 0, and `next_run_at` may be too
-- far ahead. The next call of tenure_begin_run_1 corrects `next_run_at`.
--
-- Order: lock the lease of the job exclusively, read the clock, write the run, the job and the lease. While the lease
-- is locked, no other transaction writes the run. The row of the job is not locked in advance: the UPDATE locks it.
CREATE OR REPLACE FUNCTION tenure_finish_run_1(
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
        RETURN;
    END IF;
    IF v_lease.name IS NULL OR v_lease.released OR v_lease.resigned OR v_lease.expires_at <= v_now
       OR v_run.job IS NULL
    THEN
        PERFORM tenure_lease_lost_1(p_name, p_holder, p_epoch);
    END IF;
    UPDATE job_runs r SET ended_at = v_now, outcome = p_outcome, error = p_error
     WHERE r.job = v_run.job AND r.epoch = p_epoch;
    UPDATE jobs j
       SET next_run_at = greatest(
               j.next_run_at,
               CASE WHEN p_outcome = 'succeeded'
                    THEN tenure_grid_after_1(j.interval_microseconds, v_run.started_at) END),
           retry_at = CASE WHEN p_outcome = 'failed' THEN v_now + p_retry * interval '1 microsecond' END,
           requested_at = CASE WHEN p_outcome <> 'abandoned' AND j.requested_at = v_run.requested_at THEN NULL
                               ELSE j.requested_at END,
           last_success_at = CASE WHEN p_outcome = 'succeeded' THEN v_now ELSE j.last_success_at END,
           last_duration_microseconds = greatest(0, (extract(epoch FROM v_now - v_run.started_at) * 1000000)::bigint),
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
