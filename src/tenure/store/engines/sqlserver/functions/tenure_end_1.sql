-- Ends each session now and for its given reason. A session whose deadline has passed ends at its deadline and for its
-- lapse reason. `recorded` means that this call recorded the end. If another transaction holds a session, the session
-- is returned without an end, and the caller retries. There is no row for an id that is unknown or outside the scope of
-- its caller.
--
-- Each session that this call ends gets an audit entry. A session whose deadline has passed gets none: it had ended
-- before this call.
--
-- Order: acquire the cut lock, lock the rows and then the keys that no other transaction holds, read the clock, write.
--
-- @request: [[position, session, reason, tenant, user, entry, subject, name, request], …]. The tenant and the user are
-- the scope of the caller, or null. The entry is the id of the audit entry; subject, name and request are its actor.
CREATE OR ALTER PROCEDURE dbo.tenure_end_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @now datetime2(6);
    DECLARE @said TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        position int NOT NULL,
        reason varchar(16) NOT NULL,
        entry_id uniqueidentifier NOT NULL,
        subject varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        name varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        request_id varchar(200) COLLATE Latin1_General_100_BIN2
    );
    DECLARE @mine TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        capacity_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        deadline_at datetime2(6) NOT NULL,
        has_key bit NOT NULL
    );

    -- Leave out each session outside the scope of its caller, so that its id counts as unknown. The tenant and the user
    -- of a session never change, so they are read without a lock: a request for a session outside the scope neither
    -- waits for the row of the session nor locks it.
    INSERT INTO @said (session_id, position, reason, entry_id, subject, name, request_id)
    SELECT j.session_id, j.position, j.reason, j.entry_id, j.subject, j.name, j.request_id
    FROM OPENJSON(@request) WITH (
        position int '$[0]',
        session_id uniqueidentifier '$[1]',
        reason varchar(16) '$[2]',
        tenant_object_id uniqueidentifier '$[3]',
        user_object_id uniqueidentifier '$[4]',
        entry_id uniqueidentifier '$[5]',
        subject varchar(200) '$[6]',
        name varchar(200) '$[7]',
        request_id varchar(200) '$[8]'
    ) AS j
    WHERE
        (j.tenant_object_id IS NULL AND j.user_object_id IS NULL)
        OR EXISTS (
            SELECT 1
            FROM dbo.sessions AS s WITH (READUNCOMMITTED, INDEX (sessions_pkey))
            WHERE
                s.session_id = j.session_id
                AND (j.tenant_object_id IS NULL OR s.tenant_object_id = j.tenant_object_id)
                AND (j.user_object_id IS NULL OR s.user_object_id = j.user_object_id)
        );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_lock_cut_shared_1;

    -- Lock the rows and keys that no other transaction holds. A session is written only if its row and its key are both
    -- locked.
    INSERT INTO @mine (session_id, capacity_id, user_object_id, deadline_at, has_key)
    SELECT s.session_id, s.capacity_id, s.user_object_id, s.deadline_at, 0
    FROM @said AS e
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_pkey))
        ON e.session_id = s.session_id
    WHERE s.closed_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE m
    SET m.has_key = 1
    FROM @mine AS m
    INNER JOIN dbo.sessions AS s WITH (XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_live_key))
        ON m.capacity_id = s.capacity_id AND m.user_object_id = s.user_object_id AND s.closed_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_write_now();

    UPDATE s
    SET
        s.state = 'closed',
        s.check_at = NULL,
        s.closed_at = n.closed_at,
        s.modified_at = n.closed_at,
        s.close_reason = CASE WHEN s.deadline_at <= @now THEN s.lapse_reason ELSE e.reason END
    FROM @mine AS m
    INNER JOIN @said AS e ON m.session_id = e.session_id
    INNER JOIN dbo.sessions AS s ON m.session_id = s.session_id
    CROSS APPLY dbo.tenure_closed_at_1(s.started_at, s.deadline_at, @now) AS n
    WHERE m.has_key = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    INSERT INTO dbo.audit_log (entry_id, at, subject, name, action, target, detail, request_id, changes)
    SELECT
        e.entry_id, @now, e.subject, e.name, 'session.ended', LOWER(CONVERT(varchar(36), e.session_id)), e.reason,
        e.request_id, 1
    FROM @mine AS m
    INNER JOIN @said AS e ON m.session_id = e.session_id
    WHERE m.has_key = 1 AND m.deadline_at > @now;

    COMMIT TRANSACTION;

    SELECT e.position, COALESCE(m.has_key, CAST(0 AS bit)) AS recorded, s.*
    FROM @said AS e
    INNER JOIN dbo.sessions AS s ON e.session_id = s.session_id
    LEFT JOIN @mine AS m ON e.session_id = m.session_id;
END;
