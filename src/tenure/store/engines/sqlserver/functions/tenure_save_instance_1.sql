-- Inserts or renews the row of an instance, and returns the stored start of the instance. A new row stores `started`,
-- or the current time if `started` is missing.
--
-- A row that is marked as stopped does not change again, because an earlier call may arrive after the call that marked
-- the row. Only the instance itself writes its row, so two concurrent writes can only be a call and its own retry.
--
-- Order: lock the row, read the clock, write.
--
-- @request: {"instance", "holder", "host", "pid", "worker", "version", "executor_lease", "started", "stopped"}
CREATE OR ALTER PROCEDURE dbo.tenure_save_instance_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @instance varchar(200),
        @started_at datetime2(6),
        @stopped bit,
        @known_at datetime2(6),
        @now datetime2(6);

    SELECT @instance = r.instance, @started_at = r.started_at, @stopped = r.stopped
    FROM OPENJSON(@request) WITH (
        instance varchar(200) '$.instance',
        started_at datetime2(6) '$.started',
        stopped bit '$.stopped'
    ) AS r;

    BEGIN TRANSACTION;

    SELECT @known_at = i.started_at
    FROM dbo.instances AS i WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (instances_pkey))
    WHERE i.instance = @instance;

    SET @now = dbo.tenure_now();

    IF @known_at IS NULL
    BEGIN
        IF @started_at IS NULL
            SET @started_at = @now;

        INSERT INTO dbo.instances (
            instance, holder, host, pid, worker, version, executor_lease, started_at, last_seen_at, stopped_at
        )
        SELECT
            r.instance, r.holder, r.host, r.pid, r.worker, r.version, r.executor_lease, @started_at, @now,
            CASE WHEN @stopped = 1 THEN @now END
        FROM OPENJSON(@request) WITH (
            instance varchar(200) '$.instance',
            holder varchar(200) '$.holder',
            host varchar(200) '$.host',
            pid int '$.pid',
            worker int '$.worker',
            version varchar(200) '$.version',
            executor_lease varchar(200) '$.executor_lease'
        ) AS r;
    END;
    ELSE
    BEGIN
        SET @started_at = @known_at;

        UPDATE i
        SET
            i.last_seen_at = @now,
            i.stopped_at = CASE WHEN @stopped = 1 THEN @now END
        FROM dbo.instances AS i
        WHERE i.instance = @instance AND i.stopped_at IS NULL;
    END;

    COMMIT TRANSACTION;

    SELECT @started_at AS started_at;
END;
