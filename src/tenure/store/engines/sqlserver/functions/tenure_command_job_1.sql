-- Applies a command to a job. Returns the job, or no row if it does not exist. `run` requests a run now, even if the
-- job is paused or waits after a failure. `pause` pauses the job and drops a request for a run, but does not stop a run
-- that has begun. `resume` ends a pause.
--
-- Writes an audit entry if the command changes the job, as `job_grid.changed_by` defines it.
--
-- Order: lock the job, read the clock, write.
--
-- @actor: {"entry", "subject", "name", "request"}
CREATE OR ALTER PROCEDURE dbo.tenure_command_job_1 @job varchar(200), @command varchar(16), @actor nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @now datetime2(6), @action varchar(32), @detail nvarchar(1000);
    DECLARE @commanded TABLE (
        name varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        interval_microseconds bigint NOT NULL,
        lock_timeout_microseconds bigint NOT NULL,
        next_run_at datetime2(6) NOT NULL,
        retry_at datetime2(6),
        requested_at datetime2(6),
        last_start_at datetime2(6),
        last_success_at datetime2(6),
        last_duration_microseconds bigint,
        run_count bigint NOT NULL,
        failures_in_a_row int NOT NULL,
        last_error nvarchar(1000),
        paused bit NOT NULL
    );

    BEGIN TRANSACTION;

    INSERT INTO @commanded (
        name, interval_microseconds, lock_timeout_microseconds, next_run_at, retry_at, requested_at, last_start_at,
        last_success_at, last_duration_microseconds, run_count, failures_in_a_row, last_error, paused
    )
    SELECT
        j.name, j.interval_microseconds, j.lock_timeout_microseconds, j.next_run_at, j.retry_at, j.requested_at,
        j.last_start_at, j.last_success_at, j.last_duration_microseconds, j.run_count, j.failures_in_a_row,
        j.last_error, j.paused
    FROM dbo.jobs AS j WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (jobs_pkey))
    WHERE j.name = @job;

    SET @now = dbo.tenure_now();

    -- The action stays NULL if the command changes nothing.
    SELECT
        @action = CASE
            WHEN @command = 'pause' AND (c.paused = 0 OR c.requested_at IS NOT NULL) THEN 'job.paused'
            WHEN @command = 'resume' AND c.paused = 1 THEN 'job.resumed'
            WHEN
                @command = 'run'
                AND (c.requested_at IS NULL OR c.retry_at IS NOT NULL OR c.last_start_at >= c.requested_at)
                THEN 'job.run_requested'
        END,
        @detail = CASE
            WHEN @command = 'pause' AND c.requested_at IS NOT NULL THEN N'dropped the requested run'
        END
    FROM @commanded AS c;

    UPDATE c
    SET
        c.requested_at = CASE @command WHEN 'run' THEN @now WHEN 'pause' THEN NULL ELSE c.requested_at END,
        c.retry_at = CASE @command WHEN 'run' THEN NULL ELSE c.retry_at END,
        c.paused = CASE @command WHEN 'pause' THEN 1 WHEN 'resume' THEN 0 ELSE c.paused END
    FROM @commanded AS c;

    UPDATE j
    SET j.requested_at = c.requested_at, j.retry_at = c.retry_at, j.paused = c.paused
    FROM @commanded AS c
    INNER JOIN dbo.jobs AS j ON c.name = j.name
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    IF @action IS NOT NULL
        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @actor, @action = @action, @target = @job, @detail = @detail, @changes = 1;

    COMMIT TRANSACTION;

    SELECT
        c.name, c.interval_microseconds, c.lock_timeout_microseconds, c.next_run_at, c.retry_at, c.requested_at,
        c.last_start_at, c.last_success_at, c.last_duration_microseconds, c.run_count, c.failures_in_a_row,
        c.last_error, c.paused
    FROM @commanded AS c;
END;
