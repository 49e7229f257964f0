-- Attaches: each stream becomes its session's newest. The session gets a lease and an idle limit if it had none; the idle
-- limit then counts from now. A deadline that this brings nearer brings `check_at` nearer, too. Locks are taken as by
-- tenure_heartbeat_1; `attached` is the number of the stream. Nothing comes back for an unknown id.
--
-- @request: [[position, session, lease, heartbeat, idle], …]
CREATE PROCEDURE dbo.tenure_attach_1 @request nvarchar(MAX)
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
    -- The limits are what they will be, all else is as it was found.
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

    INSERT INTO @said (session_id, position, lease_microseconds, heartbeat_microseconds, idle_microseconds)
    SELECT j.session_id, j.position, j.lease_microseconds, j.heartbeat_microseconds, j.idle_microseconds
    FROM OPENJSON(@request) WITH (
        position int '$[0]',
        session_id uniqueidentifier '$[1]',
        lease_microseconds bigint '$[2]',
        heartbeat_microseconds bigint '$[3]',
        idle_microseconds bigint '$[4]'
    ) AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_hold_off_the_cut;

    INSERT INTO @mine (
        session_id, capacity_id, user_object_id, attachment, term_ends_at, deadline_at, lapse_reason,
        lease_microseconds, heartbeat_microseconds, idle_microseconds, idle_is_new,
        last_heartbeat_at, last_activity_at, found
    )
    SELECT
        s.session_id, s.capacity_id, s.user_object_id, s.attachment, s.term_ends_at, s.deadline_at, s.lapse_reason,
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
        s.replaced_saves = s.attachment_saves,
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

    -- The session as it is by now: whoever took it over or ended it since, told so a moment earlier.
    SELECT
        a.position,
        CASE WHEN s.closed_at IS NOT NULL THEN 'over' ELSE COALESCE(m.found, 'held') END AS found,
        @now AS now,
        CAST(CASE m.found WHEN 'over' THEN 1 ELSE 0 END AS bit) AS recorded,
        COALESCE(m.attachment, s.attachment) AS attached,
        s.*
    FROM @said AS a
    INNER JOIN dbo.sessions AS s ON a.session_id = s.session_id
    LEFT JOIN @mine AS m ON a.session_id = m.session_id;
END;

-- statement-break

-- What an instance has to say about its streams: they are alive, or they have ended, and what was counted since. Only the
-- newest stream of a session keeps it alive or ends it; but what an older one counted is counted. A save that arrives
-- twice adds nothing the second time. What needs a row or a key that somebody else holds is answered by `held`, and
-- nothing of it is written. Nothing comes back for an unknown id.
--
-- @request: [[position, session, attachment, save, active, end, finished, bytes received, chunks, messages sent,
--             partials sent, finals sent, errors sent, audio milliseconds], …]
CREATE PROCEDURE dbo.tenure_update_streams_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @probe datetime2(6), @now datetime2(6);
    DECLARE @said TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        position int NOT NULL,
        attachment int NOT NULL,
        save_number int NOT NULL,
        active bit NOT NULL,
        end_reason varchar(16),
        finished bit NOT NULL,
        bytes_received bigint NOT NULL,
        chunks bigint NOT NULL,
        messages_sent bigint NOT NULL,
        partials_sent bigint NOT NULL,
        finals_sent bigint NOT NULL,
        errors_sent bigint NOT NULL,
        audio_duration_ms bigint NOT NULL
    );
    DECLARE @mine TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        capacity_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        state varchar(16) NOT NULL,
        started_at datetime2(6) NOT NULL,
        term_ends_at datetime2(6) NOT NULL,
        deadline_at datetime2(6) NOT NULL,
        lapse_reason varchar(16) NOT NULL,
        lease_microseconds bigint,
        idle_microseconds bigint,
        last_heartbeat_at datetime2(6) NOT NULL,
        last_activity_at datetime2(6) NOT NULL,
        closed_at datetime2(6),
        active bit NOT NULL,
        end_reason varchar(16),
        finished bit NOT NULL,
        is_current bit NOT NULL,
        is_new bit NOT NULL,
        has_key bit NOT NULL,
        becomes varchar(16)
    );

    INSERT INTO @said (
        session_id, position, attachment, save_number, active, end_reason, finished, bytes_received, chunks,
        messages_sent, partials_sent, finals_sent, errors_sent, audio_duration_ms
    )
    SELECT
        j.session_id, j.position, j.attachment, j.save_number, j.active, j.end_reason, j.finished, j.bytes_received,
        j.chunks, j.messages_sent, j.partials_sent, j.finals_sent, j.errors_sent, j.audio_duration_ms
    FROM OPENJSON(@request) WITH (
        position int '$[0]',
        session_id uniqueidentifier '$[1]',
        attachment int '$[2]',
        save_number int '$[3]',
        active bit '$[4]',
        end_reason varchar(16) '$[5]',
        finished bit '$[6]',
        bytes_received bigint '$[7]',
        chunks bigint '$[8]',
        messages_sent bigint '$[9]',
        partials_sent bigint '$[10]',
        finals_sent bigint '$[11]',
        errors_sent bigint '$[12]',
        audio_duration_ms bigint '$[13]'
    ) AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_hold_off_the_cut;

    INSERT INTO @mine (
        session_id, capacity_id, user_object_id, state, started_at, term_ends_at, deadline_at, lapse_reason,
        lease_microseconds, idle_microseconds, last_heartbeat_at, last_activity_at, closed_at,
        active, end_reason, finished, is_current, is_new, has_key
    )
    SELECT
        s.session_id, s.capacity_id, s.user_object_id, s.state, s.started_at, s.term_ends_at, s.deadline_at,
        s.lapse_reason, s.lease_microseconds, s.idle_microseconds, s.last_heartbeat_at, s.last_activity_at, s.closed_at,
        u.active, u.end_reason, u.finished,
        CASE WHEN s.attachment = u.attachment THEN 1 ELSE 0 END,
        CASE
            WHEN s.attachment = u.attachment AND s.attachment_saves >= u.save_number THEN 0
            WHEN s.attachment = u.attachment + 1 AND s.replaced_saves >= u.save_number THEN 0
            ELSE 1
        END,
        0
    FROM @said AS u
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_pkey))
        ON u.session_id = s.session_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- The keys of what has lapsed or is to end, where nobody holds them.
    SET @probe = dbo.tenure_write_now();
    UPDATE m
    SET m.has_key = 1
    FROM @mine AS m
    INNER JOIN dbo.sessions AS s WITH (XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_live_key))
        ON m.capacity_id = s.capacity_id AND m.user_object_id = s.user_object_id AND s.closed_at IS NULL
    WHERE
        m.closed_at IS NULL AND (m.deadline_at <= @probe OR (m.is_current = 1 AND m.end_reason IS NOT NULL))
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_write_now();

    UPDATE m
    SET
        m.becomes = CASE
            WHEN m.closed_at IS NOT NULL AND m.state = 'closing' AND m.is_current = 1 AND m.finished = 1 THEN 'finished'
            WHEN m.closed_at IS NOT NULL THEN 'over'
            WHEN m.deadline_at <= @now AND m.has_key = 1 THEN 'lapsed'
            WHEN m.deadline_at <= @now THEN 'held'
            WHEN m.is_current = 0 THEN 'replaced'
            WHEN m.end_reason IS NULL THEN 'renewed'
            WHEN m.has_key = 1 THEN 'ended'
            ELSE 'held'
        END
    FROM @mine AS m;

    UPDATE m
    SET
        m.last_activity_at = CASE
            WHEN m.active = 1 AND m.last_activity_at < @now THEN @now
            ELSE m.last_activity_at
        END
    FROM @mine AS m
    WHERE m.becomes IN ('renewed', 'ended');

    UPDATE m
    SET
        m.state = CASE WHEN m.active = 1 THEN 'active' ELSE m.state END,
        m.last_heartbeat_at = n.last_heartbeat_at,
        m.deadline_at = d.deadline_at,
        m.lapse_reason = d.lapse_reason
    FROM @mine AS m
    CROSS APPLY (
        SELECT CASE WHEN m.last_heartbeat_at < @now THEN @now ELSE m.last_heartbeat_at END AS last_heartbeat_at
    ) AS n
    CROSS APPLY dbo.tenure_deadline_1(
        m.term_ends_at, n.last_heartbeat_at, m.lease_microseconds, m.last_activity_at, m.idle_microseconds
    ) AS d
    WHERE m.becomes = 'renewed';

    UPDATE s
    SET
        s.attachment_saves = CASE
            WHEN m.is_current = 1 AND s.attachment_saves < u.save_number THEN u.save_number
            ELSE s.attachment_saves
        END,
        s.replaced_saves = CASE
            WHEN s.attachment = u.attachment + 1 AND s.replaced_saves < u.save_number THEN u.save_number
            ELSE s.replaced_saves
        END,
        s.stream_bytes_received = s.stream_bytes_received + CASE WHEN m.is_new = 1 THEN u.bytes_received ELSE 0 END,
        s.stream_chunks = s.stream_chunks + CASE WHEN m.is_new = 1 THEN u.chunks ELSE 0 END,
        s.stream_messages_sent = s.stream_messages_sent + CASE WHEN m.is_new = 1 THEN u.messages_sent ELSE 0 END,
        s.stream_partials_sent = s.stream_partials_sent + CASE WHEN m.is_new = 1 THEN u.partials_sent ELSE 0 END,
        s.stream_finals_sent = s.stream_finals_sent + CASE WHEN m.is_new = 1 THEN u.finals_sent ELSE 0 END,
        s.stream_errors_sent = s.stream_errors_sent + CASE WHEN m.is_new = 1 THEN u.errors_sent ELSE 0 END,
        s.stream_audio_duration_ms
        = s.stream_audio_duration_ms + CASE WHEN m.is_new = 1 THEN u.audio_duration_ms ELSE 0 END,
        s.state = m.state,
        s.last_heartbeat_at = m.last_heartbeat_at,
        s.last_activity_at = m.last_activity_at,
        s.deadline_at = m.deadline_at,
        s.lapse_reason = m.lapse_reason,
        s.modified_at = CASE WHEN s.modified_at < @now THEN @now ELSE s.modified_at END
    FROM @mine AS m
    INNER JOIN @said AS u ON m.session_id = u.session_id
    INNER JOIN dbo.sessions AS s ON m.session_id = s.session_id
    WHERE m.becomes <> 'held'
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- In statements of their own: none that writes `closed_at` may come near a row whose key is not locked.
    IF EXISTS (SELECT 1 FROM @mine AS m WHERE m.becomes IN ('lapsed', 'ended'))
        UPDATE s
        SET
            s.state = CASE WHEN m.becomes = 'ended' AND m.finished = 0 THEN 'closing' ELSE 'closed' END,
            s.check_at = CASE WHEN m.becomes = 'ended' AND m.finished = 0 THEN s.check_at END,
            s.closed_at = CASE
                WHEN m.becomes = 'lapsed' THEN m.deadline_at
                WHEN m.started_at < @now THEN @now
                ELSE DATEADD(MICROSECOND, 1, m.started_at)
            END,
            s.close_reason = CASE m.becomes WHEN 'lapsed' THEN m.lapse_reason ELSE m.end_reason END,
            s.modified_at = CASE m.becomes WHEN 'lapsed' THEN m.deadline_at ELSE s.modified_at END
        FROM @mine AS m
        INNER JOIN dbo.sessions AS s ON m.session_id = s.session_id
        WHERE m.becomes IN ('lapsed', 'ended')
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    IF EXISTS (SELECT 1 FROM @mine AS m WHERE m.becomes = 'finished')
        UPDATE s
        SET s.state = 'closed', s.check_at = NULL
        FROM @mine AS m
        INNER JOIN dbo.sessions AS s ON m.session_id = s.session_id
        WHERE m.becomes = 'finished'
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    -- The session as it is by now: whoever took it over or ended it since, told so a moment earlier.
    SELECT
        u.position,
        CASE
            WHEN COALESCE(m.becomes, 'held') = 'held' THEN 'held'
            WHEN s.closed_at IS NOT NULL THEN 'over'
            WHEN s.attachment = u.attachment THEN 'live'
            ELSE 'replaced'
        END AS found,
        @now AS now,
        CAST(CASE WHEN m.becomes IN ('lapsed', 'ended') THEN 1 ELSE 0 END AS bit) AS recorded,
        s.*
    FROM @said AS u
    INNER JOIN dbo.sessions AS s ON u.session_id = s.session_id
    LEFT JOIN @mine AS m ON u.session_id = m.session_id;
END;
