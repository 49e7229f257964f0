-- Ends a run and releases its lock. After a success, all ticks up to the start of the run are done, and the next tick
-- is never set to an earlier one. After a failure, the tick is still due, and the job is retried after `retry`
-- microseconds. After an abandoned run, the job is still due and runs again at once, unless it was paused meanwhile. If
-- the call is repeated after a lost answer, it changes nothing. It then raises the error of tenure_lease_lost_1 if a
-- later run has begun.
--
-- If the clock is stepped back behind the start of the run, the duration is 0. tenure_begin_run_1 checks whether the
-- next run then lies too far ahead.
--
-- Order: lock the lease of the job exclusively, lock the run, read the clock, write.
--
-- @request: {"name", "holder", "epoch", "outcome", "error", "retry"}, without "error" if there was none.
CREATE OR ALTER PROCEDURE dbo.tenure_finish_run_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @name varchar(200) = JSON_VALUE(@request, '$.name'),
        @holder varchar(200) = JSON_VALUE(@request, '$.holder'),
        @epoch bigint = JSON_VALUE(@request, '$.epoch'),
        @outcome varchar(16) = JSON_VALUE(@request, '$.outcome'),
        @error nvarchar(1000) = JSON_VALUE(@request, '$.error'),
        @retry bigint = JSON_VALUE(@request, '$.retry'),
        @expires_at datetime2(6),
        @released bit,
        @job varchar(200),
        @requested_at datetime2(6),
        @started_at datetime2(6),
        @ended_at datetime2(6),
        @retry_at datetime2(6),
        @now datetime2(6);

    SET @job = SUBSTRING(@name, 5, 200);

    BEGIN TRANSACTION;

    SELECT @expires_at = l.expires_at, @released = l.released
    FROM dbo.leases AS l WITH (XLOCK, REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey))
    WHERE l.name = @name AND l.holder = @holder AND l.epoch = @epoch;

    SELECT @requested_at = r.requested_at, @started_at = r.started_at, @ended_at = r.ended_at
    FROM dbo.job_runs AS r WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (job_runs_pkey))
    WHERE r.job = @job AND r.epoch = @epoch;

    SET @now = dbo.tenure_now();

    -- Skip this if an earlier call, whose answer was lost, has already ended the run.
    IF COALESCE(@released, 0) = 0 OR @ended_at IS NULL
    BEGIN
        IF @started_at IS NULL OR @released IS NULL OR @released = 1 OR @expires_at <= @now
            EXEC dbo.tenure_lease_lost_1 @name = @name, @holder = @holder, @epoch = @epoch;

        UPDATE dbo.job_runs
        SET ended_at = @now, outcome = @outcome, error = @error
        WHERE job = @job AND epoch = @epoch;

        IF @outcome = 'failed'
            SET @retry_at = dbo.tenure_add_microseconds_1(@now, @retry);

        UPDATE j
        SET
            j.next_run_at = CASE
                WHEN @outcome = 'succeeded' AND j.next_run_at < g.tick_at THEN g.tick_at
                ELSE j.next_run_at
            END,
            j.retry_at = @retry_at,
            j.requested_at = CASE
                WHEN @outcome <> 'abandoned' AND j.requested_at = @requested_at THEN NULL
                ELSE j.requested_at
            END,
            j.last_success_at = CASE @outcome WHEN 'succeeded' THEN @now ELSE j.last_success_at END,
            j.last_duration_microseconds = CASE
                WHEN @started_at < @now THEN DATEDIFF_BIG(MICROSECOND, @started_at, @now) ELSE 0
            END,
            j.failures_in_a_row = CASE @outcome
                WHEN 'succeeded' THEN 0
                WHEN 'failed' THEN j.failures_in_a_row + 1
                ELSE j.failures_in_a_row
            END,
            j.last_error = CASE @outcome
                WHEN 'succeeded' THEN NULL
                WHEN 'failed' THEN @error
                ELSE j.last_error
            END
        FROM dbo.jobs AS j
        CROSS APPLY (SELECT dbo.tenure_grid_after_1(j.interval_microseconds, @started_at) AS tick_at) AS g
        WHERE j.name = @job;

        UPDATE dbo.leases
        SET expires_at = @now, released = 1
        WHERE name = @name;
    END;
    COMMIT TRANSACTION;

    SELECT @now AS now;
END;
