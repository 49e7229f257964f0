-- The database's clock. Tests replace this function, and nothing else, to move time.
CREATE FUNCTION dbo.tenure_now() RETURNS datetime2(6)
AS
BEGIN
    RETURN CAST(SYSUTCDATETIME() AS datetime2(6));
END;

-- statement-break

-- The clock of a session write. Call it after the last lock and the last look: read before them, it gives sessions that
-- overlap and writes that escape the cut. Never before the last cut, even if the clock was stepped back. That instant is
-- read without a hint: whoever changes it holds the cut lock exclusively, and the caller of this holds it shared.
CREATE FUNCTION dbo.tenure_write_now() RETURNS datetime2(6)
AS
BEGIN
    DECLARE @now datetime2(6) = dbo.tenure_now();
    DECLARE @last_cut_at datetime2(6) = (SELECT i.last_cut_at FROM dbo.installation AS i);
    RETURN CASE WHEN @last_cut_at > @now THEN @last_cut_at ELSE @now END;
END;

-- statement-break

-- The limits of a session that begins at @started_at, and which of them its deadline stands for: the term wins a tie,
-- then the lease. The same as `span_of` in deadlines.py. DATEADD takes an int, too small for 30 days of microseconds.
CREATE FUNCTION dbo.tenure_span_1(@started_at datetime2(6), @term bigint, @lease bigint, @idle bigint)
RETURNS TABLE
AS
RETURN
SELECT
    e.term_ends_at,
    r.lapse_reason,
    CASE r.lapse_reason
        WHEN 'LEASE_EXPIRED' THEN e.lease_ends_at
        WHEN 'IDLE_TIMEOUT' THEN e.idle_ends_at
        ELSE e.term_ends_at
    END AS deadline_at
FROM (
    SELECT
        DATEADD(MICROSECOND, @term % 1000000, DATEADD(SECOND, @term / 1000000, @started_at)) AS term_ends_at,
        DATEADD(MICROSECOND, @lease % 1000000, DATEADD(SECOND, @lease / 1000000, @started_at)) AS lease_ends_at,
        DATEADD(MICROSECOND, @idle % 1000000, DATEADD(SECOND, @idle / 1000000, @started_at)) AS idle_ends_at
) AS e
CROSS APPLY (
    SELECT
        CASE
            WHEN
                e.lease_ends_at < e.term_ends_at AND (e.idle_ends_at IS NULL OR e.lease_ends_at <= e.idle_ends_at)
                THEN 'LEASE_EXPIRED'
            WHEN e.idle_ends_at < e.term_ends_at THEN 'IDLE_TIMEOUT'
            ELSE 'EXPIRED'
        END AS lapse_reason
) AS r;

-- statement-break

-- Held by whoever writes sessions, until the end of the transaction; a cut takes the same lock exclusively.
-- sp_getapplock does not raise: unless its code is looked at, a write goes on without the lock.
CREATE PROCEDURE dbo.tenure_hold_off_the_cut
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @granted int;
    EXEC @granted = sys.sp_getapplock
        @Resource = N'tenure.cut', @LockMode = 'Shared', @LockOwner = 'Transaction', @LockTimeout = 1000;
    IF @granted < 0
        THROW 51222, N'tenure: the cut lock was not granted in time', 1;
END;

-- statement-break

-- Opens, both lanes at once: see the docstring of engines/sqlserver.py for the order of locks.
--
-- @request: {"term", "lease", "heartbeat", "idle": the limits of whoever asks for none, in microseconds,
--            "wishes": [[position, capacity, user, tenant, kind, session, lease, heartbeat, idle], …]}
--
-- A line of the answer is the session that was there before, and what became of the wish: `existing`, `tenant-mismatch`,
-- `lapsed` (closed at its deadline, a new one opened) or `upgraded` (closed at `opened_at`, where the new one begins).
-- `created` without a session names a wish that had to begin later than the others. The line without a position speaks
-- for all that are opened and not named with an instant of their own.
CREATE PROCEDURE dbo.tenure_open_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @term bigint = JSON_VALUE(@request, '$.term'),
        @lease bigint = JSON_VALUE(@request, '$.lease'),
        @heartbeat bigint = JSON_VALUE(@request, '$.heartbeat'),
        @idle bigint = JSON_VALUE(@request, '$.idle'),
        @now datetime2(6);

    -- The primary key sorts as the index on the live keys does, which the text of a uniqueidentifier does not.
    DECLARE @wish TABLE (
        position int NOT NULL,
        capacity_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        tenant_object_id uniqueidentifier NOT NULL,
        kind smallint NOT NULL,
        session_id uniqueidentifier NOT NULL,
        lease_microseconds bigint,
        heartbeat_microseconds bigint,
        idle_microseconds bigint,
        PRIMARY KEY (capacity_id, user_object_id)
    );
    DECLARE @live TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        position int NOT NULL,
        wished_tenant_object_id uniqueidentifier NOT NULL,
        wished_kind smallint NOT NULL
    );
    DECLARE @old TABLE (
        position int NOT NULL PRIMARY KEY,
        wished_tenant_object_id uniqueidentifier NOT NULL,
        wished_kind smallint NOT NULL,
        outcome varchar(16),
        ended_at datetime2(6),
        session_id uniqueidentifier NOT NULL,
        tenant_object_id uniqueidentifier NOT NULL,
        kind smallint NOT NULL,
        state varchar(16) NOT NULL,
        started_at datetime2(6) NOT NULL,
        term_ends_at datetime2(6) NOT NULL,
        deadline_at datetime2(6) NOT NULL,
        lapse_reason varchar(16) NOT NULL,
        lease_microseconds bigint,
        idle_microseconds bigint,
        heartbeat_microseconds bigint,
        last_heartbeat_at datetime2(6) NOT NULL,
        last_activity_at datetime2(6) NOT NULL,
        previous_session_id uniqueidentifier,
        modified_at datetime2(6) NOT NULL
    );
    DECLARE @late TABLE (
        position int NOT NULL PRIMARY KEY,
        started_at datetime2(6) NOT NULL
    );

    INSERT INTO @wish (
        position, capacity_id, user_object_id, tenant_object_id, kind, session_id,
        lease_microseconds, heartbeat_microseconds, idle_microseconds
    )
    SELECT
        j.position, j.capacity_id, j.user_object_id, j.tenant_object_id, j.kind, j.session_id,
        j.lease_microseconds, j.heartbeat_microseconds, j.idle_microseconds
    FROM OPENJSON(@request, '$.wishes') WITH (
        position int '$[0]',
        capacity_id uniqueidentifier '$[1]',
        user_object_id uniqueidentifier '$[2]',
        tenant_object_id uniqueidentifier '$[3]',
        kind smallint '$[4]',
        session_id uniqueidentifier '$[5]',
        lease_microseconds bigint '$[6]',
        heartbeat_microseconds bigint '$[7]',
        idle_microseconds bigint '$[8]'
    ) AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_hold_off_the_cut;

    -- Lock the keys, also those that nobody holds, in the order of their index. TOP makes the ORDER BY binding.
    INSERT INTO @live (session_id, position, wished_tenant_object_id, wished_kind)
    SELECT TOP (1000) s.session_id, w.position, w.tenant_object_id, w.kind
    FROM @wish AS w
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_live_key))
        ON w.capacity_id = s.capacity_id AND w.user_object_id = s.user_object_id AND s.closed_at IS NULL
    ORDER BY w.capacity_id, w.user_object_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- Lock the rows, in the order of their ids, and look.
    INSERT INTO @old (
        position, wished_tenant_object_id, wished_kind, session_id, tenant_object_id, kind, state,
        started_at, term_ends_at, deadline_at, lapse_reason,
        lease_microseconds, idle_microseconds, heartbeat_microseconds,
        last_heartbeat_at, last_activity_at, previous_session_id, modified_at
    )
    SELECT TOP (1000)
        l.position, l.wished_tenant_object_id, l.wished_kind, s.session_id, s.tenant_object_id, s.kind, s.state,
        s.started_at, s.term_ends_at, s.deadline_at, s.lapse_reason,
        s.lease_microseconds, s.idle_microseconds, s.heartbeat_microseconds,
        s.last_heartbeat_at, s.last_activity_at, s.previous_session_id, s.modified_at
    FROM @live AS l
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_pkey))
        ON l.session_id = s.session_id
    ORDER BY l.session_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- The locks are ours, so the clock can be read: no end that we write lies before what others were told.
    SET @now = dbo.tenure_write_now();

    UPDATE o
    SET
        o.outcome = d.outcome,
        o.ended_at = CASE
            WHEN d.outcome = 'lapsed' THEN o.deadline_at
            WHEN d.outcome = 'upgraded' AND o.started_at < @now THEN @now
            WHEN d.outcome = 'upgraded' THEN DATEADD(MICROSECOND, 1, o.started_at)
        END
    FROM @old AS o
    CROSS APPLY (
        SELECT
            CASE
                WHEN o.deadline_at <= @now THEN 'lapsed'
                WHEN o.tenant_object_id <> o.wished_tenant_object_id THEN 'tenant-mismatch'
                WHEN o.kind >= o.wished_kind THEN 'existing'
                ELSE 'upgraded'
            END AS outcome
    ) AS d;

    -- Ends that lie after the clock, because it was stepped back or a session had to last its one microsecond: a new
    -- session of the same key begins no earlier. Nobody but us can be writing an end of our keys, so what others are
    -- writing is passed over instead of waited for.
    INSERT INTO @late (position, started_at)
    SELECT w.position, MAX(s.closed_at)
    FROM dbo.sessions AS s WITH (READCOMMITTEDLOCK, READPAST, FORCESEEK, INDEX (sessions_closed_at))
    INNER JOIN @wish AS w ON s.capacity_id = w.capacity_id AND s.user_object_id = w.user_object_id
    WHERE s.closed_at > @now AND s.closed_at IS NOT NULL
    GROUP BY w.position;

    IF EXISTS (SELECT 1 FROM @old AS o WHERE o.ended_at IS NOT NULL)
        UPDATE s
        SET
            s.state = 'closed',
            s.check_at = NULL,
            s.closed_at = o.ended_at,
            s.modified_at = o.ended_at,
            s.close_reason = CASE o.outcome WHEN 'lapsed' THEN o.lapse_reason ELSE 'UPGRADED' END
        FROM @old AS o
        INNER JOIN dbo.sessions AS s ON o.session_id = s.session_id
        WHERE o.ended_at IS NOT NULL
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    INSERT INTO dbo.sessions (
        session_id, tenant_object_id, user_object_id, capacity_id, previous_session_id,
        started_at, term_ends_at, deadline_at, check_at, last_heartbeat_at, last_activity_at, modified_at,
        lease_microseconds, idle_microseconds, heartbeat_microseconds, kind, state, lapse_reason
    )
    SELECT
        w.session_id, w.tenant_object_id, w.user_object_id, w.capacity_id, n.previous_session_id,
        n.started_at, p.term_ends_at, p.deadline_at, p.deadline_at, n.started_at, n.started_at, n.started_at,
        n.lease_microseconds, n.idle_microseconds, n.heartbeat_microseconds, w.kind, 'created', p.lapse_reason
    FROM @wish AS w
    LEFT JOIN @old AS o ON w.position = o.position
    LEFT JOIN @late AS l ON w.position = l.position
    CROSS APPLY (
        SELECT
            CASE o.outcome WHEN 'upgraded' THEN o.session_id END AS previous_session_id,
            CASE o.outcome WHEN 'upgraded' THEN o.ended_at ELSE COALESCE(l.started_at, @now) END AS started_at,
            COALESCE(
                w.lease_microseconds, CASE o.outcome WHEN 'upgraded' THEN o.lease_microseconds ELSE @lease END
            ) AS lease_microseconds,
            COALESCE(
                w.idle_microseconds, CASE o.outcome WHEN 'upgraded' THEN o.idle_microseconds ELSE @idle END
            ) AS idle_microseconds,
            CASE
                WHEN w.lease_microseconds IS NOT NULL THEN w.heartbeat_microseconds
                WHEN o.outcome = 'upgraded' THEN o.heartbeat_microseconds
                ELSE @heartbeat
            END AS heartbeat_microseconds
    ) AS n
    CROSS APPLY dbo.tenure_span_1(n.started_at, @term, n.lease_microseconds, n.idle_microseconds) AS p
    WHERE o.position IS NULL OR o.ended_at IS NOT NULL;

    COMMIT TRANSACTION;

    SELECT
        o.position, o.outcome,
        CASE o.outcome WHEN 'upgraded' THEN o.ended_at ELSE COALESCE(l.started_at, @now) END AS opened_at,
        o.session_id, o.tenant_object_id, o.kind, o.state,
        o.started_at, o.term_ends_at, o.deadline_at, o.lapse_reason,
        o.lease_microseconds, o.idle_microseconds, o.heartbeat_microseconds,
        o.last_heartbeat_at, o.last_activity_at, o.previous_session_id, o.modified_at
    FROM @old AS o
    LEFT JOIN @late AS l ON o.position = l.position
    UNION ALL
    SELECT
        l.position, 'created', l.started_at,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
    FROM @late AS l
    WHERE NOT EXISTS (SELECT 1 FROM @old AS o WHERE o.position = l.position)
    UNION ALL
    SELECT
        NULL, 'created', @now,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
END;

-- statement-break

-- Ends one session: with the reason given, or, if its deadline has passed, as that deadline demands. `recorded` tells
-- whether this call wrote it down. Nothing comes back for an unknown id.
CREATE PROCEDURE dbo.tenure_end_1 @session_id uniqueidentifier, @reason varchar(16)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @capacity_id uniqueidentifier,
        @user_object_id uniqueidentifier,
        @live_session_id uniqueidentifier,
        @started_at datetime2(6),
        @deadline_at datetime2(6),
        @ended_at datetime2(6),
        @now datetime2(6),
        @recorded bit = 0;

    -- Nothing is decided here that can change: a key is for ever, and so is an end.
    SELECT @capacity_id = s.capacity_id, @user_object_id = s.user_object_id
    FROM dbo.sessions AS s
    WHERE s.session_id = @session_id AND s.closed_at IS NULL;

    IF @capacity_id IS NOT NULL
    BEGIN
        BEGIN TRANSACTION;
        EXEC dbo.tenure_hold_off_the_cut;

        -- The key before the row, as whoever opens does.
        SELECT @live_session_id = s.session_id
        FROM dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_live_key))
        WHERE s.capacity_id = @capacity_id AND s.user_object_id = @user_object_id AND s.closed_at IS NULL;

        IF @live_session_id = @session_id
        BEGIN
            SELECT @started_at = s.started_at, @deadline_at = s.deadline_at
            FROM dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_pkey))
            WHERE s.session_id = @session_id;

            SET @now = dbo.tenure_write_now();
            SET @ended_at = CASE WHEN @started_at < @now THEN @now ELSE DATEADD(MICROSECOND, 1, @started_at) END;
            IF @ended_at > @deadline_at
                SET @ended_at = @deadline_at;

            UPDATE dbo.sessions
            SET
                state = 'closed',
                check_at = NULL,
                closed_at = @ended_at,
                modified_at = @ended_at,
                close_reason = CASE WHEN @deadline_at <= @now THEN lapse_reason ELSE @reason END
            WHERE session_id = @session_id;
            SET @recorded = 1;
        END;
        COMMIT TRANSACTION;
    END;

    SELECT @recorded AS recorded, s.*
    FROM dbo.sessions AS s
    WHERE s.session_id = @session_id;
END;
