-- Registers the jobs of an instance. A new job gets a row. For an existing job, a changed interval or lock timeout
-- takes effect at once; the next run may become earlier, but never later. `paused` applies to new rows only.
--
-- Order: lock the names, read the clock, write.
--
-- @request: [[position, name, interval, lock timeout, paused], …]
CREATE OR ALTER PROCEDURE dbo.tenure_register_jobs_1 @request nvarchar(MAX)
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

    -- Lock the names, including those without a row. All instances lock them in the same order, so that instances that
    -- start together do not deadlock. Without TOP the ORDER BY would be ignored.
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
