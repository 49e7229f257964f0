-- Ends each session now and for its given reason. A session whose deadline has passed ends at its deadline and for its
-- lapse reason. `recorded` means that this call recorded the end. If another transaction holds a session, the session
-- is returned live, and the caller retries it. An unknown id returns no row.
--
-- Order: the cut lock; the rows that no other transaction holds; the keys that no other transaction holds; the clock;
-- the writes.
--
-- @request: [[position, session, reason], …]
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
        reason varchar(16) NOT NULL
    );
    DECLARE @mine TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        capacity_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        has_key bit NOT NULL
    );

    INSERT INTO @said (session_id, position, reason)
    SELECT j.session_id, j.position, j.reason
    FROM OPENJSON(@request) WITH (
        position int '$[0]',
        session_id uniqueidentifier '$[1]',
        reason varchar(16) '$[2]'
    ) AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_lock_cut_shared_1;

    -- Lock the rows and keys that no other transaction holds. A session is written only if both are locked.
    INSERT INTO @mine (session_id, capacity_id, user_object_id, has_key)
    SELECT s.session_id, s.capacity_id, s.user_object_id, 0
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

    COMMIT TRANSACTION;

    SELECT e.position, COALESCE(m.has_key, CAST(0 AS bit)) AS recorded, s.*
    FROM @said AS e
    INNER JOIN dbo.sessions AS s ON e.session_id = s.session_id
    LEFT JOIN @mine AS m ON e.session_id = m.session_id;
END;
