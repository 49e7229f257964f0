-- Saves updates of streams. An update reports that a stream is alive or has ended, and what the stream has counted
-- since its previous save. `end` is the reason with which the update ends the session, or null; `finished` marks the
-- last save of the stream. Only the newest stream of a session renews or ends the session; the counts of an older
-- stream are still added. `save` is the number of the save, so that a save of the newest stream of a session, or of the
-- stream before it, is added once even if it arrives twice.
--
-- A keep-alive (neither `end` nor `finished`) adds nothing to a session that has ended: the stream did not know of the
-- end, and may have counted messages that arrived after the end.
--
-- `found` is `live`, `over`, `replaced` (a newer stream was attached) or `held`. A session is `held` if another
-- transaction holds its row, if the session must be closed and another transaction holds its key, or if its deadline
-- passes between the two reads of the clock. A held session is not written, and the caller retries the update.
-- `recorded` means that this call recorded the end. `counted` means that the session's counters contain the counts of
-- this save. There is no row for an unknown id.
--
-- Order: acquire the cut lock, lock the rows that no other transaction holds, read the clock, lock the keys of the
-- sessions that must end (if no other transaction holds them), read the clock again, write.
--
-- @request: [[position, session, attachment, save, active, end, finished, bytes received, chunks, messages sent,
--             partials sent, finals sent, errors sent, audio milliseconds], …]
CREATE OR ALTER PROCEDURE dbo.tenure_update_streams_1 @request nvarchar(MAX)
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
        is_added bit NOT NULL,
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
    EXEC dbo.tenure_lock_cut_shared_1;

    INSERT INTO @mine (
        session_id, capacity_id, user_object_id, state, started_at, term_ends_at, deadline_at, lapse_reason,
        lease_microseconds, idle_microseconds, last_heartbeat_at, last_activity_at, closed_at,
        active, end_reason, finished, is_current, is_new, is_added, has_key
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
        0, 0
    FROM @said AS u
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_pkey))
        ON u.session_id = s.session_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- Lock the keys of the sessions that have lapsed or end now.
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
        END,
        m.is_added = CASE
            WHEN m.is_new = 0 THEN 0
            WHEN m.end_reason IS NOT NULL OR m.finished = 1 THEN 1
            WHEN m.closed_at IS NULL AND m.deadline_at > @now THEN 1
            ELSE 0
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
            WHEN m.is_current = 1 AND m.is_added = 1 THEN u.save_number
            ELSE s.attachment_saves
        END,
        s.replaced_saves = CASE
            WHEN s.attachment = u.attachment + 1 AND m.is_added = 1 THEN u.save_number
            ELSE s.replaced_saves
        END,
        s.stream_bytes_received = s.stream_bytes_received + CASE WHEN m.is_added = 1 THEN u.bytes_received ELSE 0 END,
        s.stream_chunks = s.stream_chunks + CASE WHEN m.is_added = 1 THEN u.chunks ELSE 0 END,
        s.stream_messages_sent = s.stream_messages_sent + CASE WHEN m.is_added = 1 THEN u.messages_sent ELSE 0 END,
        s.stream_partials_sent = s.stream_partials_sent + CASE WHEN m.is_added = 1 THEN u.partials_sent ELSE 0 END,
        s.stream_finals_sent = s.stream_finals_sent + CASE WHEN m.is_added = 1 THEN u.finals_sent ELSE 0 END,
        s.stream_errors_sent = s.stream_errors_sent + CASE WHEN m.is_added = 1 THEN u.errors_sent ELSE 0 END,
        s.stream_audio_duration_ms
        = s.stream_audio_duration_ms + CASE WHEN m.is_added = 1 THEN u.audio_duration_ms ELSE 0 END,
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

    -- Separate statements write the ends of sessions, because a statement that writes `closed_at` must not touch a row
    -- whose key is not locked.
    IF EXISTS (SELECT 1 FROM @mine AS m WHERE m.becomes IN ('lapsed', 'ended'))
        UPDATE s
        SET
            s.state = CASE WHEN m.becomes = 'ended' AND m.finished = 0 THEN 'closing' ELSE 'closed' END,
            s.check_at = CASE WHEN m.becomes = 'ended' AND m.finished = 0 THEN s.check_at END,
            s.closed_at = n.closed_at,
            s.close_reason = CASE m.becomes WHEN 'lapsed' THEN m.lapse_reason ELSE m.end_reason END,
            s.modified_at = CASE m.becomes WHEN 'lapsed' THEN m.deadline_at ELSE s.modified_at END
        FROM @mine AS m
        INNER JOIN dbo.sessions AS s ON m.session_id = s.session_id
        CROSS APPLY dbo.tenure_closed_at_1(m.started_at, m.deadline_at, @now) AS n
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

    -- Read the current state of the session: since the commit, another transaction may have ended the session or
    -- attached a newer stream.
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
        CAST(CASE WHEN m.becomes <> 'held' AND (m.is_added = 1 OR m.is_new = 0) THEN 1 ELSE 0 END AS bit) AS counted,
        s.*
    FROM @said AS u
    INNER JOIN dbo.sessions AS s ON u.session_id = s.session_id
    LEFT JOIN @mine AS m ON u.session_id = m.session_id;
END;
