-- Deletes one batch of rows past their retention time, under the fence of job `prune`: lease history, job runs,
-- delivered or cancelled submissions (with their attempts and event batches), entries of the audit log, cleared alerts,
-- rows of instances that are gone, and rows of `activity`. @limit is the most rows of each of these kinds. @history,
-- @runs, @submissions, @audit, @alerts, @instances and @activity are the retention times in microseconds. Returns the
-- number of rows deleted from each table; attempts and event batches are not counted.
--
-- The procedure deletes only rows that no other transaction holds. If it waited for rows, the lock of its fence would
-- meanwhile delay the renewal of the lease. It locks the rows of submissions first and then their idempotency keys. It
-- waits for neither: tenure_accept_submissions_1 waits for a row while it holds the key of the row, so a wait for the
-- key could cause a deadlock.
CREATE OR ALTER PROCEDURE dbo.tenure_prune_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @limit int,
    @history bigint,
    @runs bigint,
    @submissions bigint,
    @audit bigint,
    @alerts bigint,
    @instances bigint,
    @activity bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @now datetime2(6),
        @history_before datetime2(6),
        @runs_before datetime2(6),
        @submissions_before datetime2(6),
        @audit_before datetime2(6),
        @alerts_before datetime2(6),
        @instances_before datetime2(6),
        @activity_before datetime2(6),
        @deleted int = 1,
        @pruned_history int,
        @pruned_runs int,
        @pruned_submissions int,
        @pruned_entries int,
        @pruned_alerts int,
        @pruned_instances int,
        @pruned_activity int;
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
    DECLARE @old TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        caller varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        gateway varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        idempotency_key varbinary(255) NOT NULL,
        has_key bit NOT NULL
    );

    DECLARE @old_entries TABLE (
        entry_id uniqueidentifier NOT NULL PRIMARY KEY
    );

    DECLARE @old_alerts TABLE (
        alert_id uniqueidentifier NOT NULL PRIMARY KEY
    );

    DECLARE @old_instances TABLE (
        instance varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY
    );

    DECLARE @old_activity TABLE (
        at datetime2(6) NOT NULL,
        instance varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        turn int NOT NULL,
        PRIMARY KEY (at, instance, turn)
    );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    SET @now = dbo.tenure_now();
    SET @history_before = dbo.tenure_add_microseconds_1(@now, -@history);
    SET @runs_before = dbo.tenure_add_microseconds_1(@now, -@runs);
    SET @submissions_before = dbo.tenure_add_microseconds_1(@now, -@submissions);
    SET @audit_before = dbo.tenure_add_microseconds_1(@now, -@audit);
    SET @alerts_before = dbo.tenure_add_microseconds_1(@now, -@alerts);
    SET @instances_before = dbo.tenure_add_microseconds_1(@now, -@instances);
    SET @activity_before = dbo.tenure_add_microseconds_1(@now, -@activity);

    INSERT INTO @old_history (name, epoch)
    SELECT TOP (@limit) h.name, h.epoch
    FROM dbo.lease_history AS h WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (lease_history_pkey))
    WHERE h.ended_at < @history_before
    ORDER BY h.name, h.epoch
    OPTION (MAXDOP 1);

    DELETE h
    FROM @old_history AS o
    INNER JOIN dbo.lease_history AS h ON o.name = h.name AND o.epoch = h.epoch
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_history = @@ROWCOUNT;

    INSERT INTO @old_runs (job, epoch)
    SELECT TOP (@limit) r.job, r.epoch
    FROM dbo.job_runs AS r
        WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, FORCESEEK, INDEX (job_runs_started_at))
    WHERE r.started_at < @runs_before AND r.ended_at IS NOT NULL
    ORDER BY r.started_at
    OPTION (MAXDOP 1);

    DELETE r
    FROM @old_runs AS o
    INNER JOIN dbo.job_runs AS r ON o.job = r.job AND o.epoch = r.epoch
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_runs = @@ROWCOUNT;

    INSERT INTO @old_entries (entry_id)
    SELECT TOP (@limit) l.entry_id
    FROM dbo.audit_log AS l
        WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, FORCESEEK, INDEX (audit_log_at))
    WHERE l.at < @audit_before
    ORDER BY l.at
    OPTION (MAXDOP 1);

    DELETE l
    FROM @old_entries AS o
    INNER JOIN dbo.audit_log AS l ON o.entry_id = l.entry_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_entries = @@ROWCOUNT;

    INSERT INTO @old_alerts (alert_id)
    SELECT TOP (@limit) a.alert_id
    FROM dbo.alerts AS a
        WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, FORCESEEK, INDEX (alerts_cleared_at))
    WHERE a.cleared_at < @alerts_before AND a.cleared_at IS NOT NULL
    ORDER BY a.cleared_at
    OPTION (MAXDOP 1);

    DELETE a
    FROM @old_alerts AS o
    INNER JOIN dbo.alerts AS a ON o.alert_id = a.alert_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_alerts = @@ROWCOUNT;

    INSERT INTO @old_instances (instance)
    SELECT TOP (@limit) i.instance
    FROM dbo.instances AS i WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (instances_pkey))
    WHERE i.last_seen_at < @instances_before
    ORDER BY i.instance
    OPTION (MAXDOP 1);

    DELETE i
    FROM @old_instances AS o
    INNER JOIN dbo.instances AS i ON o.instance = i.instance
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_instances = @@ROWCOUNT;

    INSERT INTO @old_activity (at, instance, turn)
    SELECT TOP (@limit) a.at, a.instance, a.turn
    FROM dbo.activity AS a
        WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, FORCESEEK, INDEX (activity_pkey))
    WHERE a.at < @activity_before
    ORDER BY a.at, a.instance, a.turn
    OPTION (MAXDOP 1);

    DELETE a
    FROM @old_activity AS o
    INNER JOIN dbo.activity AS a ON o.at = a.at AND o.instance = a.instance AND o.turn = a.turn
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_activity = @@ROWCOUNT;

    INSERT INTO @old (submission_id, caller, gateway, idempotency_key, has_key)
    SELECT TOP (@limit) s.submission_id, s.caller, s.gateway, s.idempotency_key, 0
    FROM dbo.submissions AS s
        WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, FORCESEEK, INDEX (submissions_ended_at))
    WHERE s.state IN ('delivered', 'cancelled') AND s.ended_at < @submissions_before
    ORDER BY s.ended_at
    OPTION (MAXDOP 1);

    UPDATE o
    SET o.has_key = 1
    FROM @old AS o
    INNER JOIN dbo.submissions AS s WITH (XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (submissions_key))
        ON o.caller = s.caller AND o.gateway = s.gateway AND o.idempotency_key = s.idempotency_key
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- Delete in portions: a statement that takes 5000 locks or more locks the whole table.
    WHILE @deleted > 0
    BEGIN
        DELETE TOP (2000) t
        FROM @old AS o
        INNER JOIN dbo.submission_attempts AS t ON o.submission_id = t.submission_id
        WHERE o.has_key = 1
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
        SET @deleted = @@ROWCOUNT;
    END;

    DELETE b
    FROM @old AS o
    INNER JOIN dbo.event_batches AS b ON o.submission_id = b.submission_id
    WHERE o.has_key = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    DELETE s
    FROM @old AS o
    INNER JOIN dbo.submissions AS s ON o.submission_id = s.submission_id
    WHERE o.has_key = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_submissions = @@ROWCOUNT;

    COMMIT TRANSACTION;

    SELECT
        @pruned_history AS lease_history,
        @pruned_runs AS job_runs,
        @pruned_submissions AS submissions,
        @pruned_entries AS audit_log,
        @pruned_alerts AS alerts,
        @pruned_instances AS instances,
        @pruned_activity AS activity;
END;
