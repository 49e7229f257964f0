-- Raises an alert for each condition that has no active alert, and clears each active alert whose condition is not in
-- the request, under the fence of job `watch`. If the request has a contract, the procedure inserts a submission to
-- gateway `oncall` for each alert that it raises or clears, and takes the next id from "submissions". Returns the
-- active alerts that were raised in this epoch and the alerts that were cleared in this epoch within the last hour. The
-- result includes the alerts that an earlier call of this epoch changed, because the answer of that call may have been
-- lost.
--
-- Order: check the fence (which locks the lease), lock the active alerts in the order of their index, read the clock,
-- write. Only the holder of the lease and tenure_prune_1 write alerts, and tenure_prune_1 takes only alerts that are
-- cleared. The insert of submissions may wait for a transaction that accepts submissions with neighbouring keys. No
-- transaction that holds a submission waits for an alert, so this wait cannot cause a deadlock.
--
-- @request: {"conditions": [[position, id, name, subject, detail], …], "contract", "submissions": [[position, id], …]},
-- without "contract" if there is no gateway. A condition is a pair of the name and the subject; its id is the id of the
-- alert that it may raise. "submissions" has enough ids for all changes.
CREATE OR ALTER PROCEDURE dbo.tenure_update_alerts_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @now datetime2(6),
        @cleared_after datetime2(6),
        @contract nvarchar(MAX) = JSON_QUERY(@request, '$.contract');
    DECLARE @conditions TABLE (
        name varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        subject varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        alert_id uniqueidentifier NOT NULL,
        detail nvarchar(1000) NOT NULL,
        PRIMARY KEY (name, subject)
    );
    DECLARE @active TABLE (
        name varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        subject varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        alert_id uniqueidentifier NOT NULL,
        PRIMARY KEY (name, subject)
    );
    DECLARE @changed TABLE (
        position int NOT NULL IDENTITY (0, 1) PRIMARY KEY,
        alert_id uniqueidentifier NOT NULL,
        transition varchar(16) NOT NULL
    );
    DECLARE @result TABLE (
        alert_id uniqueidentifier NOT NULL PRIMARY KEY,
        name varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        subject varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        detail nvarchar(1000) NOT NULL,
        raised_at datetime2(6) NOT NULL,
        cleared_at datetime2(6),
        cleared_epoch bigint
    );

    INSERT INTO @conditions (name, subject, alert_id, detail)
    SELECT j.name, j.subject, j.alert_id, j.detail
    FROM OPENJSON(@request, '$.conditions') WITH (
        alert_id uniqueidentifier '$[1]',
        name varchar(200) '$[2]',
        subject varchar(200) '$[3]',
        detail nvarchar(1000) '$[4]'
    ) AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    INSERT INTO @active (name, subject, alert_id)
    SELECT a.name, a.subject, a.alert_id
    FROM dbo.alerts AS a WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (alerts_active))
    WHERE a.cleared_at IS NULL
    ORDER BY a.name, a.subject
    OPTION (MAXDOP 1);

    SET @now = dbo.tenure_now();
    SET @cleared_after = DATEADD(HOUR, -1, @now);

    INSERT INTO @changed (alert_id, transition)
    SELECT c.alert_id, 'raised'
    FROM @conditions AS c
    WHERE NOT EXISTS (SELECT 1 FROM @active AS a WHERE a.name = c.name AND a.subject = c.subject);

    INSERT INTO @changed (alert_id, transition)
    SELECT a.alert_id, 'cleared'
    FROM @active AS a
    WHERE NOT EXISTS (SELECT 1 FROM @conditions AS c WHERE c.name = a.name AND c.subject = a.subject);

    INSERT INTO dbo.alerts (alert_id, name, subject, detail, raised_at, raised_epoch)
    SELECT c.alert_id, c.name, c.subject, c.detail, @now, @epoch
    FROM @changed AS h
    INNER JOIN @conditions AS c ON h.alert_id = c.alert_id
    WHERE h.transition = 'raised';

    UPDATE a
    SET a.cleared_at = @now, a.cleared_epoch = @epoch
    FROM @changed AS h
    INNER JOIN dbo.alerts AS a ON h.alert_id = a.alert_id
    WHERE h.transition = 'cleared'
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    IF @contract IS NOT NULL
        INSERT INTO dbo.submissions (
            submission_id, gateway, caller, idempotency_key, delivery_key, digest, contract, state, attempts,
            failures, next_attempt_at, created_at, last_modified_at
        )
        SELECT
            j.submission_id, 'oncall', 'tenure', CONVERT(varbinary(255), k.delivery_key), k.delivery_key, 0x,
            @contract, 'pending', 0,
            0, @now, @now, @now
        FROM @changed AS h
        INNER JOIN OPENJSON(@request, '$.submissions') WITH (
            position int '$[0]',
            submission_id uniqueidentifier '$[1]'
        ) AS j ON h.position = j.position
        CROSS APPLY (
            -- LOWER, because SQL Server formats a uniqueidentifier in upper case, and Tenure uses lower case.
            SELECT
                CAST(
                    CONCAT(LOWER(CONVERT(varchar(36), h.alert_id)), '-', h.transition) AS varchar(200)
                ) AS delivery_key
        ) AS k;

    INSERT INTO @result (alert_id, name, subject, detail, raised_at, cleared_at, cleared_epoch)
    SELECT a.alert_id, a.name, a.subject, a.detail, a.raised_at, a.cleared_at, a.cleared_epoch
    FROM dbo.alerts AS a WITH (READCOMMITTEDLOCK, INDEX (alerts_active))
    WHERE a.cleared_at IS NULL AND a.raised_epoch = @epoch;

    INSERT INTO @result (alert_id, name, subject, detail, raised_at, cleared_at, cleared_epoch)
    SELECT a.alert_id, a.name, a.subject, a.detail, a.raised_at, a.cleared_at, a.cleared_epoch
    FROM dbo.alerts AS a WITH (READCOMMITTEDLOCK, FORCESEEK, INDEX (alerts_cleared_at))
    WHERE a.cleared_at >= @cleared_after AND a.cleared_at IS NOT NULL AND a.cleared_epoch = @epoch;

    COMMIT TRANSACTION;

    SELECT r.alert_id, r.name, r.subject, r.detail, r.raised_at, r.cleared_at, r.cleared_epoch
    FROM @result AS r;
END;
