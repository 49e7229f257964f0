-- The first instant of the grid after @at: multiples of the interval since 1970-01-01T00:00Z.
CREATE FUNCTION dbo.tenure_grid_after_1(@interval bigint, @at datetime2(6)) RETURNS datetime2(6)
AS
BEGIN
    DECLARE @since bigint = DATEDIFF_BIG(MICROSECOND, CAST('1970-01-01' AS datetime2(6)), @at);
    RETURN dbo.tenure_later_1(@at, @interval - @since % @interval);
END;

-- statement-break

-- What an instance knows about its jobs. A changed interval holds at once; whether a job is paused is told only when its row
-- is made.
--
-- @request: [[position, name, interval, lock timeout, paused], …]
CREATE PROCEDURE dbo.tenure_register_jobs_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @now datetime2(6);
    DECLARE @given TABLE (
        name varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        interval_microseconds bigint NOT NULL,
        lock_timeout_microseconds bigint NOT NULL,
        paused bit NOT NULL,
        next_run_at datetime2(6)
    );
    DECLARE @known TABLE (
        name varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY
    );

    INSERT INTO @given (name, interval_microseconds, lock_timeout_microseconds, paused)
    SELECT r.name, r.interval_microseconds, r.lock_timeout_microseconds, r.paused
    FROM OPENJSON(@request) WITH (
        name varchar(200) '$[1]',
        interval_microseconds bigint '$[2]',
        lock_timeout_microseconds bigint '$[3]',
        paused bit '$[4]'
    ) AS r;

    BEGIN TRANSACTION;

    -- Lock the names, also those that have no row yet, in their order: instances that start together must not wait for
    -- each other crosswise. TOP makes the ORDER BY binding.
    INSERT INTO @known (name)
    SELECT TOP (1000) j.name
    FROM @given AS g
    INNER JOIN dbo.jobs AS j WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (jobs_pkey)) ON g.name = j.name
    ORDER BY g.name
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_now();

    UPDATE g
    SET g.next_run_at = dbo.tenure_grid_after_1(g.interval_microseconds, @now)
    FROM @given AS g;

    INSERT INTO dbo.jobs (
        name, interval_microseconds, lock_timeout_microseconds, next_run_at, run_count, failures_in_a_row, paused
    )
    SELECT g.name, g.interval_microseconds, g.lock_timeout_microseconds, g.next_run_at, 0, 0, g.paused
    FROM @given AS g
    WHERE NOT EXISTS (SELECT 1 FROM @known AS k WHERE k.name = g.name);

    UPDATE j
    SET
        j.interval_microseconds = g.interval_microseconds,
        j.lock_timeout_microseconds = g.lock_timeout_microseconds,
        j.next_run_at = CASE
            WHEN j.interval_microseconds <> g.interval_microseconds AND g.next_run_at < j.next_run_at
                THEN g.next_run_at
            ELSE j.next_run_at
        END
    FROM @given AS g
    INNER JOIN dbo.jobs AS j ON g.name = j.name
    WHERE
        j.interval_microseconds <> g.interval_microseconds
        OR j.lock_timeout_microseconds <> g.lock_timeout_microseconds
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT @now AS now;
END;

-- statement-break

-- Begins a run of a job that is due and whose lock is free. Lock before job, as when a run is finished; and the lock alone,
-- which waits for writes under its fences, before the job, too.
--
-- @attempt recognises its own work after a lost answer. A run that is still open under the lock's last epoch was abandoned:
-- its holder died, or its lock was taken from it.
CREATE PROCEDURE dbo.tenure_begin_run_1 @job varchar(200), @holder varchar(200), @attempt uniqueidentifier
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
        @retry_at datetime2(6),
        @requested_at datetime2(6),
        @started_at datetime2(6),
        @tick_at datetime2(6),
        @lock_timeout bigint,
        @failures int,
        @reclaimed_epoch bigint,
        @reclaimed_holder varchar(200),
        @now datetime2(6) = dbo.tenure_now();

    -- A first look that keeps no lock and makes no row.
    IF EXISTS (
        SELECT 1
        FROM dbo.jobs AS j
        WHERE
            j.name = @job AND (j.retry_at IS NULL OR j.retry_at <= @now)
            AND (j.requested_at IS NOT NULL OR (j.paused = 0 AND j.next_run_at <= @now))
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
            -- While its lock is held by this attempt, nobody else writes the run or what is read of the job.
            SET @found = 'held';
            SELECT
                @found = 'begun',
                @started_at = r.started_at,
                @tick_at = r.tick_at,
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
            SET @is_due = CASE
                WHEN @retry_at > @now THEN 0
                WHEN @requested_at IS NOT NULL THEN 1
                WHEN @paused = 0 AND @next_run_at <= @now THEN 1
                ELSE 0
            END;
        END;

        IF @is_due = 1
        BEGIN
            UPDATE dbo.job_runs
            SET
                ended_at = @expires_at,
                outcome = 'abandoned',
                error = CASE @released WHEN 1 THEN N'its lock was taken from it' ELSE N'its lock ran out' END
            WHERE job = @job AND epoch = @reclaimed_epoch;

            SET @found = 'begun';
            SET @epoch = COALESCE(@epoch, 0) + 1;
            SET @started_at = @now;
            SET @tick_at = CASE WHEN @next_run_at <= @now THEN @next_run_at END;
            SET @failures = @failures + CASE WHEN @reclaimed_epoch IS NULL THEN 0 ELSE 1 END;
            SET @expires_at = dbo.tenure_later_1(@now, @lock_timeout);

            EXEC dbo.tenure_begin_epoch_1
                @name = @name,
                @holder = @holder,
                @epoch = @epoch,
                @attempt = @attempt,
                @now = @now,
                @expires_at = @expires_at;

            INSERT INTO dbo.job_runs (job, epoch, holder, tick_at, requested_at, started_at)
            VALUES (@job, @epoch, @holder, @tick_at, @requested_at, @now);

            UPDATE dbo.jobs
            SET
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
        @reclaimed_holder AS reclaimed_holder;
END;

-- statement-break

-- Ends a run and releases its lock. What succeeded has done all ticks up to its start; what failed keeps its tick; what was
-- abandoned leaves the job as it is, to be run again at once.
--
-- @request: {"name", "holder", "epoch", "outcome", "error", "retry"}, without an error if there was none.
CREATE PROCEDURE dbo.tenure_finish_run_1 @request nvarchar(MAX)
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

    -- Unless it was carried out before, and the answer was lost.
    IF COALESCE(@released, 0) = 0 OR @ended_at IS NULL
    BEGIN
        IF @started_at IS NULL OR @released IS NULL OR @released = 1 OR @expires_at <= @now
            EXEC dbo.tenure_lease_lost_1 @name = @name, @holder = @holder, @epoch = @epoch;

        UPDATE dbo.job_runs
        SET ended_at = @now, outcome = @outcome, error = @error
        WHERE job = @job AND epoch = @epoch;

        IF @outcome = 'failed'
            SET @retry_at = dbo.tenure_later_1(@now, @retry);

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
            j.last_duration_microseconds = DATEDIFF_BIG(MICROSECOND, @started_at, @now),
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

-- statement-break

-- run: now, even if it is paused or waits after a failure. pause: also forgets a run that was asked for and has not begun.
-- Nothing comes back of a job that does not exist.
CREATE PROCEDURE dbo.tenure_command_job_1 @job varchar(200), @command varchar(16)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @now datetime2(6);
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

    COMMIT TRANSACTION;

    SELECT
        c.name, c.interval_microseconds, c.lock_timeout_microseconds, c.next_run_at, c.retry_at, c.requested_at,
        c.last_start_at, c.last_success_at, c.last_duration_microseconds, c.run_count, c.failures_in_a_row,
        c.last_error, c.paused
    FROM @commanded AS c;
END;

-- statement-break

-- One batch of what is kept long enough. Under the fence of the job that does it. It takes what nobody holds, and so waits
-- for nobody while it keeps the lease from being renewed.
CREATE PROCEDURE dbo.tenure_prune_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @limit int,
    @history bigint,
    @runs bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @now datetime2(6),
        @history_before datetime2(6),
        @runs_before datetime2(6),
        @pruned_history int,
        @pruned_runs int;
    DECLARE @old_history TABLE (
        name varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        epoch bigint NOT NULL,
        PRIMARY KEY (name, epoch)
    );
    DECLARE @old_runs TABLE (
        job varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        epoch bigint NOT NULL,
        PRIMARY KEY (job, epoch)
    );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    SET @now = dbo.tenure_now();
    SET @history_before = dbo.tenure_later_1(@now, -@history);
    SET @runs_before = dbo.tenure_later_1(@now, -@runs);

    INSERT INTO @old_history (name, epoch)
    SELECT TOP (@limit) h.name, h.epoch
    FROM dbo.lease_history AS h WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (lease_history_pkey))
    WHERE h.ended_at < @history_before
    ORDER BY h.name, h.epoch
    OPTION (MAXDOP 1);

    INSERT INTO @old_runs (job, epoch)
    SELECT TOP (@limit) r.job, r.epoch
    FROM dbo.job_runs AS r
        WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, FORCESEEK, INDEX (job_runs_started_at))
    WHERE r.started_at < @runs_before AND r.ended_at IS NOT NULL
    ORDER BY r.started_at
    OPTION (MAXDOP 1);

    DELETE h
    FROM @old_history AS o
    INNER JOIN dbo.lease_history AS h ON o.name = h.name AND o.epoch = h.epoch
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_history = @@ROWCOUNT;

    DELETE r
    FROM @old_runs AS o
    INNER JOIN dbo.job_runs AS r ON o.job = r.job AND o.epoch = r.epoch
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_runs = @@ROWCOUNT;

    COMMIT TRANSACTION;

    SELECT @pruned_history AS lease_history, @pruned_runs AS job_runs;
END;

-- statement-break

-- The sweep, under the fence of its job: see tenure_expire_1, which instances of the version before still call without one.
-- Its transaction is part of this one, and its answer is kept back until this one is committed.
CREATE PROCEDURE dbo.tenure_expire_2 @name varchar(200), @holder varchar(200), @epoch bigint, @limit int
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @swept TABLE (
        session_id uniqueidentifier,
        reason varchar(16),
        ended_at datetime2(6),
        looked_at int
    );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;
    INSERT INTO @swept (session_id, reason, ended_at, looked_at)
    EXEC dbo.tenure_expire_1 @limit = @limit;
    COMMIT TRANSACTION;

    SELECT s.session_id, s.reason, s.ended_at, s.looked_at
    FROM @swept AS s;
END;
