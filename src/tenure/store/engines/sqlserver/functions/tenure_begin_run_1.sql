-- Begins a run of a job that is due and whose lock is free: acquires the lock and records the run. `found` is `begun`,
-- `held` (the lock is not free) or `idle` (not due, or no such job). If an earlier call with the same @attempt began a
-- run and the answer was lost, this call returns that run as long as the run still holds the lock, and `reclaimed_…` is
-- NULL.
--
-- If the lock is free but a run under its last epoch is still open, that run was abandoned: the lock expired, or
-- tenure_resign_lease_1 took the lock from its holder. The abandoned run is recorded as `abandoned` and returned as
-- `reclaimed_…`.
--
-- If the clock was stepped back so far that the job's next tick is more than two intervals ahead
-- (tenure_clock_is_behind_1), and the job is not paused, the next tick becomes the last tick at or before now, and
-- `clock_behind` returns the next tick from before this change. From then on the ordinary rules apply: after a failure
-- the tick stays the same, after a success the next tick follows.
--
-- Order: read the clock and the rows without keeping a lock (an idle call ends here), lock the lease of the job with an
-- update lock, read the clock. If the lease is free: lock its row exclusively (which waits for writes under its
-- fences), lock the job and the last run, read the clock again, write.
CREATE OR ALTER PROCEDURE dbo.tenure_begin_run_1 @job varchar(200), @holder varchar(200), @attempt uniqueidentifier
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @name varchar(204) = CONCAT('job:', @job),
        @found varchar(16) = 'idle',
        @epoch bigint,
        @taken_by uniqueidentifier,
        @expires_at datetime2(6),
        @released bit,
        @is_due bit = 0,
        @paused bit,
        @next_run_at datetime2(6),
        @interval bigint,
        @retry_at datetime2(6),
        @requested_at datetime2(6),
        @started_at datetime2(6),
        @tick_at datetime2(6),
        @lock_timeout bigint,
        @failures int,
        @reclaimed_epoch bigint,
        @reclaimed_holder varchar(200),
        @clock_behind datetime2(6),
        @now datetime2(6) = dbo.tenure_now();

    IF EXISTS (
        SELECT 1
        FROM dbo.jobs AS j
        WHERE
            j.name = @job
            AND dbo.tenure_is_due_1(
                j.next_run_at, j.interval_microseconds, j.retry_at, j.requested_at, j.paused, @now
            ) = 1
    )
    OR EXISTS (SELECT 1 FROM dbo.leases AS l WHERE l.name = @name AND l.attempt = @attempt)
    BEGIN
        BEGIN TRANSACTION;

        SELECT @epoch = l.epoch, @taken_by = l.attempt, @expires_at = l.expires_at, @released = l.released
        FROM dbo.leases AS l WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (leases_pkey))
        WHERE l.name = @name;

        SET @now = dbo.tenure_now();

        IF @epoch IS NOT NULL AND @released = 0 AND @expires_at > @now
        BEGIN
            -- If the lock was acquired with this @attempt, its run is returned. The read keeps no lock: this
            -- transaction has locked the lease, so no other one writes the run or the number of failures in a row.
            SET @found = 'held';
            SELECT
                @found = 'begun',
                @started_at = r.started_at,
                @tick_at = r.tick_at,
                @clock_behind = r.clock_behind,
                @lock_timeout = j.lock_timeout_microseconds,
                @failures = j.failures_in_a_row
            FROM dbo.job_runs AS r WITH (READCOMMITTEDLOCK, INDEX (job_runs_pkey))
            INNER JOIN dbo.jobs AS j WITH (READCOMMITTEDLOCK, INDEX (jobs_pkey)) ON r.job = j.name
            WHERE r.job = @job AND r.epoch = @epoch AND @taken_by = @attempt;
        END;
        ELSE
        BEGIN
            SELECT @epoch = l.epoch
            FROM dbo.leases AS l WITH (XLOCK, REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey))
            WHERE l.name = @name;

            SELECT
                @next_run_at = j.next_run_at,
                @interval = j.interval_microseconds,
                @requested_at = j.requested_at,
                @lock_timeout = j.lock_timeout_microseconds,
                @failures = j.failures_in_a_row,
                @retry_at = j.retry_at,
                @paused = j.paused
            FROM dbo.jobs AS j WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (jobs_pkey))
            WHERE j.name = @job;

            SELECT @reclaimed_epoch = r.epoch, @reclaimed_holder = r.holder
            FROM dbo.job_runs AS r WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (job_runs_pkey))
            WHERE r.job = @job AND r.epoch = @epoch AND r.ended_at IS NULL;

            SET @now = dbo.tenure_now();
            SET @is_due = dbo.tenure_is_due_1(@next_run_at, @interval, @retry_at, @requested_at, @paused, @now);
        END;

        IF @is_due = 1
        BEGIN
            IF @paused = 0 AND dbo.tenure_clock_is_behind_1(@next_run_at, @interval, @now) = 1
            BEGIN
                SET @clock_behind = @next_run_at;
                SET @next_run_at = dbo.tenure_grid_at_1(@interval, @now);
            END;

            UPDATE dbo.job_runs
            SET
                ended_at = @expires_at,
                outcome = 'abandoned',
                error = CASE @released WHEN 1 THEN N'its lock was resigned' ELSE N'its lock expired' END
            WHERE job = @job AND epoch = @reclaimed_epoch;

            SET @found = 'begun';
            SET @epoch = COALESCE(@epoch, 0) + 1;
            SET @started_at = @now;
            SET @tick_at = CASE WHEN @next_run_at <= @now THEN @next_run_at END;
            SET @failures = @failures + CASE WHEN @reclaimed_epoch IS NULL THEN 0 ELSE 1 END;
            SET @expires_at = dbo.tenure_add_microseconds_1(@now, @lock_timeout);

            EXEC dbo.tenure_begin_epoch_1
                @name = @name,
                @holder = @holder,
                @epoch = @epoch,
                @attempt = @attempt,
                @now = @now,
                @expires_at = @expires_at;

            INSERT INTO dbo.job_runs (job, epoch, holder, tick_at, requested_at, started_at, clock_behind)
            VALUES (@job, @epoch, @holder, @tick_at, @requested_at, @now, @clock_behind);

            UPDATE dbo.jobs
            SET
                next_run_at = @next_run_at,
                last_start_at = @now,
                run_count = run_count + 1,
                failures_in_a_row = @failures,
                last_error = CASE
                    WHEN @reclaimed_epoch IS NULL THEN last_error
                    ELSE CONCAT(N'abandoned by ', @reclaimed_holder)
                END
            WHERE name = @job;
        END;
        COMMIT TRANSACTION;
    END;

    SELECT
        @found AS found,
        @epoch AS epoch,
        @started_at AS started_at,
        @expires_at AS expires_at,
        @tick_at AS tick_at,
        @lock_timeout AS lock_timeout_microseconds,
        @failures AS failures_in_a_row,
        @reclaimed_epoch AS reclaimed_epoch,
        @reclaimed_holder AS reclaimed_holder,
        @clock_behind AS clock_behind;
END;
