-- The deadline of a session, and which of its limits it stands for: the term wins a tie, then the lease. The same as
-- `earliest` in deadlines.py. DATEADD takes an int, too small for 30 days of microseconds.
CREATE FUNCTION dbo.tenure_deadline_1(
    @term_ends_at datetime2(6),
    @last_heartbeat_at datetime2(6),
    @lease bigint,
    @last_activity_at datetime2(6),
    @idle bigint
)
RETURNS TABLE
AS
RETURN
SELECT
    r.lapse_reason,
    CASE r.lapse_reason
        WHEN 'LEASE_EXPIRED' THEN e.lease_ends_at
        WHEN 'IDLE_TIMEOUT' THEN e.idle_ends_at
        ELSE @term_ends_at
    END AS deadline_at
FROM (
    SELECT
        DATEADD(MICROSECOND, @lease % 1000000, DATEADD(SECOND, @lease / 1000000, @last_heartbeat_at)) AS lease_ends_at,
        DATEADD(MICROSECOND, @idle % 1000000, DATEADD(SECOND, @idle / 1000000, @last_activity_at)) AS idle_ends_at
) AS e
CROSS APPLY (
    SELECT
        CASE
            WHEN
                e.lease_ends_at < @term_ends_at AND (e.idle_ends_at IS NULL OR e.lease_ends_at <= e.idle_ends_at)
                THEN 'LEASE_EXPIRED'
            WHEN e.idle_ends_at < @term_ends_at THEN 'IDLE_TIMEOUT'
            ELSE 'EXPIRED'
        END AS lapse_reason
) AS r;

-- statement-break

-- Heartbeats: renew what is live, record what has lapsed. A row, or the key of one to be closed, that somebody else holds
-- is answered by `held` and asked for again. A session that stays live is written without touching an index, so its key
-- is not needed. A clock that was stepped back shortens nothing. Nothing comes back for an unknown id.
--
-- @request: [[position, session, active], …]
CREATE PROCEDURE dbo.tenure_heartbeat_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @probe datetime2(6), @now datetime2(6);
    DECLARE @said TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        position int NOT NULL,
        active bit NOT NULL
    );
    DECLARE @mine TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        position int NOT NULL,
        active bit NOT NULL,
        capacity_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        state varchar(16) NOT NULL,
        term_ends_at datetime2(6) NOT NULL,
        deadline_at datetime2(6) NOT NULL,
        lapse_reason varchar(16) NOT NULL,
        lease_microseconds bigint,
        idle_microseconds bigint,
        heartbeat_microseconds bigint,
        last_heartbeat_at datetime2(6) NOT NULL,
        last_activity_at datetime2(6) NOT NULL,
        found varchar(16) NOT NULL
    );

    INSERT INTO @said (session_id, position, active)
    SELECT j.session_id, j.position, j.active
    FROM OPENJSON(@request) WITH (
        position int '$[0]',
        session_id uniqueidentifier '$[1]',
        active bit '$[2]'
    ) AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_hold_off_the_cut;

    -- Lock the rows that nobody holds, and look.
    INSERT INTO @mine (
        session_id, position, active, capacity_id, user_object_id, state, term_ends_at, deadline_at, lapse_reason,
        lease_microseconds, idle_microseconds, heartbeat_microseconds, last_heartbeat_at, last_activity_at, found
    )
    SELECT
        s.session_id, b.position, b.active, s.capacity_id, s.user_object_id, s.state, s.term_ends_at, s.deadline_at,
        s.lapse_reason, s.lease_microseconds, s.idle_microseconds, s.heartbeat_microseconds,
        s.last_heartbeat_at, s.last_activity_at, 'held'
    FROM @said AS b
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_pkey))
        ON b.session_id = s.session_id
    WHERE s.closed_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- The keys of what has lapsed, where nobody holds them.
    SET @probe = dbo.tenure_write_now();
    IF EXISTS (SELECT 1 FROM @mine AS m WHERE m.deadline_at <= @probe)
        UPDATE m
        SET m.found = 'over'
        FROM @mine AS m
        INNER JOIN dbo.sessions AS s WITH (XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_live_key))
            ON m.capacity_id = s.capacity_id AND m.user_object_id = s.user_object_id AND s.closed_at IS NULL
        WHERE m.deadline_at <= @probe
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- A session whose deadline passes between the two readings is `held`, and over when asked for again.
    SET @now = dbo.tenure_write_now();

    UPDATE m
    SET
        m.found = 'live',
        m.state = CASE WHEN m.active = 1 THEN 'active' ELSE m.state END,
        m.last_heartbeat_at = n.last_heartbeat_at,
        m.last_activity_at = n.last_activity_at,
        m.deadline_at = d.deadline_at,
        m.lapse_reason = d.lapse_reason
    FROM @mine AS m
    CROSS APPLY (
        SELECT
            CASE WHEN m.last_heartbeat_at < @now THEN @now ELSE m.last_heartbeat_at END AS last_heartbeat_at,
            CASE
                WHEN m.active = 1 AND m.last_activity_at < @now THEN @now
                ELSE m.last_activity_at
            END AS last_activity_at
    ) AS n
    CROSS APPLY dbo.tenure_deadline_1(
        m.term_ends_at, n.last_heartbeat_at, m.lease_microseconds, n.last_activity_at, m.idle_microseconds
    ) AS d
    WHERE m.found = 'held' AND m.deadline_at > @now;

    UPDATE s
    SET
        s.state = m.state,
        s.last_heartbeat_at = m.last_heartbeat_at,
        s.last_activity_at = m.last_activity_at,
        s.deadline_at = m.deadline_at,
        s.lapse_reason = m.lapse_reason,
        s.modified_at = CASE WHEN s.modified_at < @now THEN @now ELSE s.modified_at END
    FROM @mine AS m
    INNER JOIN dbo.sessions AS s ON m.session_id = s.session_id
    WHERE m.found = 'live'
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    IF EXISTS (SELECT 1 FROM @mine AS m WHERE m.found = 'over')
        UPDATE s
        SET
            s.state = 'closed',
            s.check_at = NULL,
            s.closed_at = m.deadline_at,
            s.modified_at = m.deadline_at,
            s.close_reason = m.lapse_reason
        FROM @mine AS m
        INNER JOIN dbo.sessions AS s ON m.session_id = s.session_id
        WHERE m.found = 'over'
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT
        m.position, m.found,
        CASE m.found WHEN 'over' THEN 'closed' ELSE m.state END AS state,
        m.deadline_at, m.heartbeat_microseconds,
        CASE m.found WHEN 'over' THEN m.lapse_reason END AS close_reason,
        CAST(CASE m.found WHEN 'over' THEN 1 ELSE 0 END AS bit) AS recorded
    FROM @mine AS m
    UNION ALL
    -- What others held, or what was over before: an end is for ever, so it can be read after the commit.
    SELECT
        b.position,
        CASE WHEN s.closed_at IS NULL THEN 'held' ELSE 'over' END,
        s.state, s.deadline_at, s.heartbeat_microseconds, s.close_reason, CAST(0 AS bit)
    FROM @said AS b
    INNER JOIN dbo.sessions AS s ON b.session_id = s.session_id
    WHERE NOT EXISTS (SELECT 1 FROM @mine AS m WHERE m.session_id = b.session_id);
END;

-- statement-break

-- Ends: each with its reason, or, if its deadline has passed, as that deadline demands. `recorded` tells whether this call
-- wrote it down. A session that comes back live was held by somebody else; nothing comes back for an unknown id.
--
-- @request: [[position, session, reason], …]
CREATE PROCEDURE dbo.tenure_end_2 @request nvarchar(MAX)
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
    EXEC dbo.tenure_hold_off_the_cut;

    -- Rows and keys that nobody holds: without both, nothing is written.
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
        s.closed_at = CASE WHEN s.deadline_at < n.ended_at THEN s.deadline_at ELSE n.ended_at END,
        s.modified_at = CASE WHEN s.deadline_at < n.ended_at THEN s.deadline_at ELSE n.ended_at END,
        s.close_reason = CASE WHEN s.deadline_at <= @now THEN s.lapse_reason ELSE e.reason END
    FROM @mine AS m
    INNER JOIN @said AS e ON m.session_id = e.session_id
    INNER JOIN dbo.sessions AS s ON m.session_id = s.session_id
    CROSS APPLY (
        SELECT CASE WHEN s.started_at < @now THEN @now ELSE DATEADD(MICROSECOND, 1, s.started_at) END AS ended_at
    ) AS n
    WHERE m.has_key = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT e.position, COALESCE(m.has_key, CAST(0 AS bit)) AS recorded, s.*
    FROM @said AS e
    INNER JOIN dbo.sessions AS s ON e.session_id = s.session_id
    LEFT JOIN @mine AS m ON e.session_id = m.session_id;
END;

-- statement-break

-- One batch of the sweep: of what `check_at` says is due, what is over is recorded with its deadline as its end, and what
-- lives on is looked at again at its present deadline. A row left `closing` by an instance that died is closed. The last
-- line tells how many were looked at.
--
-- It takes rows and keys in an order of its own, by `check_at`, and may: it takes only what nobody holds, and so waits
-- for nobody while others wait for it. What it passes over is due again the next time. Any number may sweep at once.
CREATE PROCEDURE dbo.tenure_expire_1 @limit int
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
        deadline_at datetime2(6) NOT NULL,
        lapse_reason varchar(16) NOT NULL,
        closed_at datetime2(6),
        has_key bit NOT NULL
    );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_hold_off_the_cut;

    SET @probe = dbo.tenure_write_now();
    INSERT INTO @due (session_id, capacity_id, user_object_id, deadline_at, lapse_reason, closed_at, has_key)
    SELECT TOP (@limit)
        s.session_id, s.capacity_id, s.user_object_id, s.deadline_at, s.lapse_reason, s.closed_at, 0
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

    -- In statements of their own: none that writes `closed_at` may come near a row whose key is not locked.
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

    SELECT d.session_id, d.lapse_reason AS reason, d.deadline_at AS ended_at, NULL AS looked_at
    FROM @due AS d
    WHERE d.has_key = 1
    UNION ALL
    SELECT NULL, NULL, NULL, COUNT(*)
    FROM @due;
END;
