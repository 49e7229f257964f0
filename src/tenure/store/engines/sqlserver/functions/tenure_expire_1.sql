-- Runs one batch of the sweep, under the fence of job `expire-sessions`. The sweep checks the rows whose `check_at` has
-- passed. If the deadline of a session has passed, the sweep records the lapse, with the deadline as the end. If not,
-- the deadline becomes the next `check_at`. The sweep also closes sessions that a dead instance left in state
-- `closing`. Each result row is a lapse, except the last one, which has only the number of rows that were checked.
--
-- Order: check the fence (which locks the lease), acquire the cut lock, read the clock, lock the rows and then the keys
-- that no other transaction holds, read the clock again, write. Procedures that open sessions lock keys before rows.
-- The reverse order cannot deadlock here, because the sweep takes only rows and keys that no other transaction holds,
-- and never waits for one. The next sweep finds the rows that this one skips, so any number of sweeps may run at the
-- same time.
CREATE OR ALTER PROCEDURE dbo.tenure_expire_1 @name varchar(200), @holder varchar(200), @epoch bigint, @limit int
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @probe datetime2(6), @now datetime2(6);
    DECLARE @due TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        capacity_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        tenant_object_id uniqueidentifier NOT NULL,
        deadline_at datetime2(6) NOT NULL,
        lapse_reason varchar(16) NOT NULL,
        closed_at datetime2(6),
        has_key bit NOT NULL
    );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;
    EXEC dbo.tenure_lock_cut_shared_1;

    SET @probe = dbo.tenure_write_now();
    INSERT INTO @due (
        session_id, capacity_id, user_object_id, tenant_object_id, deadline_at, lapse_reason, closed_at, has_key
    )
    SELECT TOP (@limit)
        s.session_id, s.capacity_id, s.user_object_id, s.tenant_object_id, s.deadline_at, s.lapse_reason, s.closed_at, 0
    FROM dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, FORCESEEK, INDEX (sessions_check_at))
    WHERE s.check_at <= @probe AND s.check_at IS NOT NULL
    ORDER BY s.check_at
    OPTION (MAXDOP 1);

    UPDATE d
    SET d.has_key = 1
    FROM @due AS d
    INNER JOIN dbo.sessions AS s WITH (XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_live_key))
        ON d.capacity_id = s.capacity_id AND d.user_object_id = s.user_object_id AND s.closed_at IS NULL
    WHERE d.closed_at IS NULL AND d.deadline_at <= @probe
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_write_now();

    IF EXISTS (SELECT 1 FROM @due AS d WHERE d.has_key = 1)
        UPDATE s
        SET
            s.state = 'closed',
            s.check_at = NULL,
            s.closed_at = d.deadline_at,
            s.modified_at = d.deadline_at,
            s.close_reason = d.lapse_reason
        FROM @due AS d
        INNER JOIN dbo.sessions AS s ON d.session_id = s.session_id
        WHERE d.has_key = 1
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- The next two updates are separate statements, because a statement that writes `closed_at` must not touch a row
    -- whose key is not locked.
    IF EXISTS (SELECT 1 FROM @due AS d WHERE d.closed_at IS NOT NULL AND d.deadline_at <= @now)
        UPDATE s
        SET s.state = 'closed', s.check_at = NULL
        FROM @due AS d
        INNER JOIN dbo.sessions AS s ON d.session_id = s.session_id
        WHERE d.closed_at IS NOT NULL AND d.deadline_at <= @now
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    IF EXISTS (SELECT 1 FROM @due AS d WHERE d.deadline_at > @now)
        UPDATE s
        SET s.check_at = d.deadline_at
        FROM @due AS d
        INNER JOIN dbo.sessions AS s ON d.session_id = s.session_id
        WHERE d.deadline_at > @now
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT
        d.session_id, d.lapse_reason AS reason, d.deadline_at AS ended_at,
        d.user_object_id, d.tenant_object_id, d.capacity_id, NULL AS looked_at
    FROM @due AS d
    WHERE d.has_key = 1
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, COUNT(*)
    FROM @due;
END;
