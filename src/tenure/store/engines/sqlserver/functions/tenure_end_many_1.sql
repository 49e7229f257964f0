-- Ends those of the given sessions that are live and match the criteria, with the reason TERMINATED. An action, which
-- ends the sessions that match a filter, may take several calls. The calls share one audit entry, to which each call
-- adds the number of sessions that it has ended. The first call that ends a session writes the entry. Sessions that
-- started after that call are not ended, so that the action finishes. A session whose deadline has passed ends at its
-- deadline and for its lapse reason; it does not count, because it had ended before this call.
--
-- Each result row except the last is an end that this call recorded. The last row has only `same`, `total` and
-- `began_at`. `same` is 0 if the entry belongs to another caller, action or filter; then nothing was changed. `total`
-- counts the ends of the action, which began at `began_at`. Sessions that other transactions hold are skipped.
--
-- Order: acquire the cut lock, acquire the lock of the action (so that its calls take turns), read its entry, lock the
-- rows and then the keys that no other transaction holds, read the clock, write.
--
-- @request: {"sessions": [session, …], "tenant", "user", "capacity", "kind", "state", "draft": {"entry", "subject",
-- "name", "request", "action", "target", "detail"}}, without the values that are not set.
CREATE OR ALTER PROCEDURE dbo.tenure_end_many_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @tenant uniqueidentifier = JSON_VALUE(@request, '$.tenant'),
        @user uniqueidentifier = JSON_VALUE(@request, '$.user'),
        @capacity uniqueidentifier = JSON_VALUE(@request, '$.capacity'),
        @kind smallint = JSON_VALUE(@request, '$.kind'),
        @state varchar(16) = JSON_VALUE(@request, '$.state'),
        @draft nvarchar(MAX) = JSON_QUERY(@request, '$.draft'),
        @entry uniqueidentifier = JSON_VALUE(@request, '$.draft.entry'),
        @action varchar(32) = JSON_VALUE(@request, '$.draft.action'),
        @target varchar(200) = JSON_VALUE(@request, '$.draft.target'),
        @detail nvarchar(1000) = JSON_VALUE(@request, '$.draft.detail'),
        @began_at datetime2(6),
        @total int,
        @same bit,
        @ended int,
        @now datetime2(6);
    DECLARE @asked TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY
    );
    DECLARE @mine TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        capacity_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        tenant_object_id uniqueidentifier NOT NULL,
        started_at datetime2(6) NOT NULL,
        deadline_at datetime2(6) NOT NULL,
        lapse_reason varchar(16) NOT NULL,
        has_key bit NOT NULL
    );

    INSERT INTO @asked (session_id)
    SELECT DISTINCT j.session_id
    FROM OPENJSON(@request, '$.sessions') WITH (session_id uniqueidentifier '$') AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_lock_cut_shared_1;
    EXEC dbo.tenure_join_action_1
        @draft = @draft, @began_at = @began_at OUTPUT, @total = @total OUTPUT, @same = @same OUTPUT;

    -- Lock the rows and keys that no other transaction holds. A session is written only if both are locked.
    INSERT INTO @mine (
        session_id, capacity_id, user_object_id, tenant_object_id, started_at, deadline_at, lapse_reason, has_key
    )
    SELECT
        s.session_id, s.capacity_id, s.user_object_id, s.tenant_object_id, s.started_at, s.deadline_at,
        s.lapse_reason, 0
    FROM @asked AS e
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_pkey))
        ON e.session_id = s.session_id
    WHERE
        @same = 1
        AND s.closed_at IS NULL
        AND (@began_at IS NULL OR s.started_at <= @began_at)
        AND (@tenant IS NULL OR s.tenant_object_id = @tenant)
        AND (@user IS NULL OR s.user_object_id = @user)
        AND (@capacity IS NULL OR s.capacity_id = @capacity)
        AND (@kind IS NULL OR s.kind = @kind)
        AND (@state IS NULL OR s.state = @state)
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
        s.close_reason = CASE WHEN s.deadline_at <= @now THEN s.lapse_reason ELSE 'TERMINATED' END,
        s.end_entry_id = CASE WHEN s.deadline_at > @now THEN @entry END
    FROM @mine AS m
    INNER JOIN dbo.sessions AS s ON m.session_id = s.session_id
    CROSS APPLY dbo.tenure_closed_at_1(s.started_at, s.deadline_at, @now) AS n
    WHERE m.has_key = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SELECT @ended = COUNT(*)
    FROM @mine AS m
    WHERE m.has_key = 1 AND m.deadline_at > @now;

    IF @ended > 0
        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @draft, @action = @action, @target = @target, @detail = @detail, @changes = @ended;

    COMMIT TRANSACTION;

    SELECT
        m.session_id, CASE WHEN m.deadline_at <= @now THEN m.lapse_reason ELSE 'TERMINATED' END AS reason,
        n.closed_at AS ended_at, m.user_object_id, m.tenant_object_id, m.capacity_id, NULL AS same, NULL AS total,
        NULL AS began_at
    FROM @mine AS m
    CROSS APPLY dbo.tenure_closed_at_1(m.started_at, m.deadline_at, @now) AS n
    WHERE m.has_key = 1
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, @same, @total + @ended, COALESCE(@began_at, @now);
END;
