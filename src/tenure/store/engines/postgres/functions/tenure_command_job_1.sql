-- Applies a command to a job. Returns the job, or no row if it does not exist. `run` requests a run now, even if the
-- job is paused or waits after a failure. `pause` also drops a request whose run has not begun. `resume` ends a pause.
CREATE OR REPLACE FUNCTION tenure_command_job_1(p_job text, p_command text)
RETURNS SETOF jobs
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN QUERY
        UPDATE jobs j
           SET requested_at = CASE p_command WHEN 'run' THEN tenure_now() WHEN 'pause' THEN NULL
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
