-- Applies a command to a job. Returns the job, or no row if it does not exist. `run` requests a run that begins at
-- once, even if the job is paused or waits after a failure. `pause` also drops the request for a run, but does not stop
-- a run that has begun. `resume` ends a pause.
--
-- Writes an audit entry if the command has an effect according to `changed_by` in domain/job_grid.py.
--
-- Order: lock the job, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_command_job_1(p_job text, p_command text, p_actor jsonb)
RETURNS SETOF jobs
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_old jobs;
    v_now timestamptz;
    v_changed boolean;
BEGIN
    SELECT * INTO v_old FROM jobs j WHERE j.name = p_job FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_now := tenure_now();
    v_changed := CASE p_command
        WHEN 'pause' THEN NOT v_old.paused OR v_old.requested_at IS NOT NULL
        WHEN 'resume' THEN v_old.paused
        ELSE v_old.requested_at IS NULL OR v_old.retry_at IS NOT NULL
             OR coalesce(v_old.last_start_at >= v_old.requested_at, false) END;
    IF v_changed THEN
        PERFORM tenure_audit_1(
            v_now, p_actor,
            CASE p_command WHEN 'pause' THEN 'job.paused' WHEN 'resume' THEN 'job.resumed'
                           ELSE 'job.run_requested' END,
            p_job,
            CASE WHEN p_command = 'pause' AND v_old.requested_at IS NOT NULL THEN 'dropped the requested run' END, 1);
    END IF;
    RETURN QUERY
        UPDATE jobs j
           SET requested_at = CASE p_command WHEN 'run' THEN v_now WHEN 'pause' THEN NULL
                                             ELSE j.requested_at END,
               retry_at = CASE p_command WHEN 'run' THEN NULL ELSE j.retry_at END,
               paused = CASE p_command WHEN 'pause' THEN true WHEN 'resume' THEN false ELSE j.paused END
         WHERE j.name = p_job
        RETURNING j.*;
    IF p_command <> 'pause' THEN
        PERFORM pg_notify('tenure', 'leases');
    END IF;
END
$$;
