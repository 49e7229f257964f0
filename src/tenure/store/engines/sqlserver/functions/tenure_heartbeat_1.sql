-- Processes heartbeats: renews live sessions and records the lapse of those whose deadline has passed. `found` is
-- `live`, `over` or `held`. A session is `held` if another transaction holds its row, if the session must be closed and
-- another transaction holds its key, or if its deadline passes between the two reads of the clock. The caller retries a
-- held session. `recorded` means that this call recorded the end. The result has no row for an id that is unknown or
-- outside the scope of its caller.
--
-- A clock that was stepped back never shortens a deadline. A renewal changes no index entry, so it needs no lock on the
-- key of the session.
--
-- Order: acquire the cut lock, lock the rows that no other transaction holds, read the clock, lock the keys of the
-- sessions that must end (if no other transaction holds them), read the clock again, write. The statements that lock
-- rows and keys are repeated in tenure_end_1, tenure_end_many_1, tenure_attach_1, tenure_update_streams_1 and
-- tenure_expire_1, because each procedure needs the locked rows in its own table variable, and a procedure cannot fill
-- a table variable of its caller.
--
-- @request: [[position, session, active, tenant, user], …]
CREATE OR ALTER PROCEDURE dbo.tenure_heartbeat_1 @request nvarchar(MAX)
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
        tenant_object_id uniqueidentifier NOT NULL,
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

    -- Leave out the sessions outside the scope of their caller, like those that do not exist. The tenant and the user
    -- of a session never change, so they are read without a lock: a caller outside the scope neither waits for the row
    -- nor locks it.
    INSERT INTO @said (session_id, position, active)
    SELECT j.session_id, j.position, j.active
    FROM OPENJSON(@request) WITH (
        position int '$[0]',
        session_id uniqueidentifier '$[1]',
        active bit '$[2]',
        tenant_object_id uniqueidentifier '$[3]',
        user_object_id uniqueidentifier '$[4]'
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

    -- Lock and read the rows that no other transaction holds.
    INSERT INTO @mine (
        session_id, position, active, capacity_id, user_object_id, tenant_object_id, state, term_ends_at, deadline_at,
        lapse_reason, lease_microseconds, idle_microseconds, heartbeat_microseconds, last_heartbeat_at, last_activity_at, found
    )
    SELECT
        s.session_id, b.position, b.active, s.capacity_id, s.user_object_id, s.tenant_object_id, s.state,
        s.term_ends_at, s.deadline_at,
        s.lapse_reason, s.lease_microseconds, s.idle_microseconds, s.heartbeat_microseconds,
        s.last_heartbeat_at, s.last_activity_at, 'held'
    FROM @said AS b
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_pkey))
        ON b.session_id = s.session_id
    WHERE s.closed_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- Lock the keys of the sessions that have lapsed.
    SET @probe = dbo.tenure_write_now();
    IF EXISTS (SELECT 1 FROM @mine AS m WHERE m.deadline_at <= @probe)
        UPDATE m
        SET m.found = 'over'
        FROM @mine AS m
        INNER JOIN dbo.sessions AS s WITH (XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_live_key))
            ON m.capacity_id = s.capacity_id AND m.user_object_id = s.user_object_id AND s.closed_at IS NULL
        WHERE m.deadline_at <= @probe
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- A session whose deadline passes between the two readings of the clock stays `held`. The retry returns `over`.
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
        CAST(CASE m.found WHEN 'over' THEN 1 ELSE 0 END AS bit) AS recorded,
        m.user_object_id, m.tenant_object_id, m.capacity_id
    FROM @mine AS m
    UNION ALL
    -- Add the sessions that other transactions hold, and those that had already ended. An end is final, so it can be
    -- read after the commit.
    SELECT
        b.position,
        CASE WHEN s.closed_at IS NULL THEN 'held' ELSE 'over' END,
        s.state, s.deadline_at, s.heartbeat_microseconds, s.close_reason, CAST(0 AS bit),
        s.user_object_id, s.tenant_object_id, s.capacity_id
    FROM @said AS b
    INNER JOIN dbo.sessions AS s ON b.session_id = s.session_id
    WHERE NOT EXISTS (SELECT 1 FROM @mine AS m WHERE m.session_id = b.session_id);
END;
