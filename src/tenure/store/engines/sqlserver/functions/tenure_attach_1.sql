-- Attaches streams: each becomes the newest stream of its session. A session without a lease gets the given lease and
-- heartbeat interval. A session without an idle limit gets the given idle limit, which counts from now. If the new
-- deadline is before `check_at`, `check_at` moves back to the new deadline. `attached` is the number of the stream.
-- `found` and `recorded` mean the same as in tenure_heartbeat_1. There is no row for an id that is unknown or outside
-- the scope of its caller.
--
-- Order: acquire the cut lock, lock the rows that no other transaction holds, read the clock, lock the keys of the
-- sessions that must end (if no other transaction holds them), read the clock again, write.
--
-- @request: [[position, session, lease, heartbeat, idle, tenant, user], …]
CREATE OR ALTER PROCEDURE dbo.tenure_attach_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @probe datetime2(6), @now datetime2(6);
    DECLARE @said TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        position int NOT NULL,
        lease_microseconds bigint NOT NULL,
        heartbeat_microseconds bigint NOT NULL,
        idle_microseconds bigint NOT NULL
    );
    -- The lease, the heartbeat interval and the idle limit are those after the attach. All other columns start with the
    -- values that were read.
    DECLARE @mine TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        capacity_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        attachment int NOT NULL,
        term_ends_at datetime2(6) NOT NULL,
        deadline_at datetime2(6) NOT NULL,
        lapse_reason varchar(16) NOT NULL,
        lease_microseconds bigint NOT NULL,
        heartbeat_microseconds bigint,
        idle_microseconds bigint NOT NULL,
        idle_is_new bit NOT NULL,
        last_heartbeat_at datetime2(6) NOT NULL,
        last_activity_at datetime2(6) NOT NULL,
        found varchar(16) NOT NULL
    );

    -- Leave out the sessions outside the scope of their caller, as if they did not exist. The tenant and the user of a
    -- session never change, so they are read without a lock: a caller outside the scope neither waits for the row nor
    -- locks it.
    INSERT INTO @said (session_id, position, lease_microseconds, heartbeat_microseconds, idle_microseconds)
    SELECT j.session_id, j.position, j.lease_microseconds, j.heartbeat_microseconds, j.idle_microseconds
    FROM OPENJSON(@request) WITH (
        position int '$[0]',
        session_id uniqueidentifier '$[1]',
        lease_microseconds bigint '$[2]',
        heartbeat_microseconds bigint '$[3]',
        idle_microseconds bigint '$[4]',
        tenant_object_id uniqueidentifier '$[5]',
        user_object_id uniqueidentifier '$[6]'
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

    INSERT INTO @mine (
        session_id, capacity_id, user_object_id, attachment, term_ends_at, deadline_at, lapse_reason,
        lease_microseconds, heartbeat_microseconds, idle_microseconds, idle_is_new,
        last_heartbeat_at, last_activity_at, found
    )
    SELECT
        s.session_id, s.capacity_id, s.user_object_id, COALESCE(s.attachment, 0),
        s.term_ends_at, s.deadline_at, s.lapse_reason,
        COALESCE(s.lease_microseconds, a.lease_microseconds),
        CASE WHEN s.lease_microseconds IS NULL THEN a.heartbeat_microseconds ELSE s.heartbeat_microseconds END,
        COALESCE(s.idle_microseconds, a.idle_microseconds),
        CASE WHEN s.idle_microseconds IS NULL THEN 1 ELSE 0 END,
        s.last_heartbeat_at, s.last_activity_at, 'held'
    FROM @said AS a
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_pkey))
        ON a.session_id = s.session_id
    WHERE s.closed_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @probe = dbo.tenure_write_now();
    IF EXISTS (SELECT 1 FROM @mine AS m WHERE m.deadline_at <= @probe)
        UPDATE m
        SET m.found = 'over'
        FROM @mine AS m
        INNER JOIN dbo.sessions AS s WITH (XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_live_key))
            ON m.capacity_id = s.capacity_id AND m.user_object_id = s.user_object_id AND s.closed_at IS NULL
        WHERE m.deadline_at <= @probe
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_write_now();

    UPDATE m
    SET
        m.found = 'live',
        m.attachment = m.attachment + 1,
        m.last_heartbeat_at = n.last_heartbeat_at,
        m.last_activity_at = n.last_activity_at,
        m.deadline_at = d.deadline_at,
        m.lapse_reason = d.lapse_reason
    FROM @mine AS m
    CROSS APPLY (
        SELECT
            CASE WHEN m.last_heartbeat_at < @now THEN @now ELSE m.last_heartbeat_at END AS last_heartbeat_at,
            CASE
                WHEN m.idle_is_new = 1 AND m.last_activity_at < @now THEN @now
                ELSE m.last_activity_at
            END AS last_activity_at
    ) AS n
    CROSS APPLY dbo.tenure_deadline_1(
        m.term_ends_at, n.last_heartbeat_at, m.lease_microseconds, n.last_activity_at, m.idle_microseconds
    ) AS d
    WHERE m.found = 'held' AND m.deadline_at > @now;

    UPDATE s
    SET
        s.attachment = m.attachment,
        s.attachment_saves = 0,
        s.replaced_saves = COALESCE(s.attachment_saves, 0),
        s.lease_microseconds = m.lease_microseconds,
        s.heartbeat_microseconds = m.heartbeat_microseconds,
        s.idle_microseconds = m.idle_microseconds,
        s.last_heartbeat_at = m.last_heartbeat_at,
        s.last_activity_at = m.last_activity_at,
        s.deadline_at = m.deadline_at,
        s.check_at = CASE WHEN s.check_at < m.deadline_at THEN s.check_at ELSE m.deadline_at END,
        s.lapse_reason = m.lapse_reason,
        s.modified_at = CASE WHEN s.modified_at < @now THEN @now ELSE s.modified_at END,
        s.stream_bytes_received = COALESCE(s.stream_bytes_received, 0),
        s.stream_chunks = COALESCE(s.stream_chunks, 0),
        s.stream_messages_sent = COALESCE(s.stream_messages_sent, 0),
        s.stream_partials_sent = COALESCE(s.stream_partials_sent, 0),
        s.stream_finals_sent = COALESCE(s.stream_finals_sent, 0),
        s.stream_errors_sent = COALESCE(s.stream_errors_sent, 0),
        s.stream_audio_duration_ms = COALESCE(s.stream_audio_duration_ms, 0)
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

    -- Return the sessions as they are now: since the commit, another transaction may have ended a session, or attached
    -- a newer stream to it.
    SELECT
        a.position,
        CASE WHEN s.closed_at IS NOT NULL THEN 'over' ELSE COALESCE(m.found, 'held') END AS found,
        @now AS now,
        CAST(CASE m.found WHEN 'over' THEN 1 ELSE 0 END AS bit) AS recorded,
        COALESCE(m.attachment, s.attachment, 0) AS attached,
        s.*
    FROM @said AS a
    INNER JOIN dbo.sessions AS s ON a.session_id = s.session_id
    LEFT JOIN @mine AS m ON a.session_id = m.session_id;
END;
