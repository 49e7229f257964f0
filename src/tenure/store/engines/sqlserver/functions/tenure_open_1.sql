-- Opens sessions in lanes `create` and `reopen`. The docstring of engines/sqlserver/store.py describes the order of
-- locks.
--
-- @request: {"term", "lease", "heartbeat", "idle": the limits of a request that sets none, in microseconds,
--            "requests": [[position, capacity, user, tenant, kind, session, lease, heartbeat, idle], …]}
--
-- A result row contains the session that existed before a request, and the outcome of the request: `existing`,
-- `tenant-mismatch`, `lapsed` (the session was closed at its deadline, and a new one was opened) or `upgraded` (the
-- session was closed at `opened_at`, and the new one starts at the same instant). The outcome `limited` means that the
-- caller must retry the request in lane `limited`. The row without a position stands for all new sessions without a row
-- of their own; they all start at its `opened_at`. If all earlier sessions of a key have been closed, but one of them
-- ends after this instant, the new session starts at that end. The new session then has a row of its own, with the
-- outcome `created` and its own `opened_at`.
CREATE OR ALTER PROCEDURE dbo.tenure_open_1 @request nvarchar(MAX)
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

    -- The primary key sorts the requests in the order of the index of live keys. The caller cannot sort them by
    -- their texts, because SQL Server orders values of uniqueidentifier in another way.
    DECLARE @wanted TABLE (
        position int NOT NULL,
        capacity_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        tenant_object_id uniqueidentifier NOT NULL,
        kind smallint NOT NULL,
        session_id uniqueidentifier NOT NULL,
        lease_microseconds bigint,
        heartbeat_microseconds bigint,
        idle_microseconds bigint,
        has_rules bit NOT NULL,
        PRIMARY KEY (user_object_id, capacity_id)
    );
    DECLARE @live TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        position int NOT NULL,
        wanted_tenant_object_id uniqueidentifier NOT NULL,
        wanted_kind smallint NOT NULL,
        has_rules bit NOT NULL
    );
    DECLARE @old TABLE (
        position int NOT NULL PRIMARY KEY,
        wanted_tenant_object_id uniqueidentifier NOT NULL,
        wanted_kind smallint NOT NULL,
        has_rules bit NOT NULL,
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
        imported_start_at datetime2(6),
        modified_at datetime2(6) NOT NULL,
        stream_bytes_received bigint,
        stream_chunks bigint,
        stream_messages_sent bigint,
        stream_partials_sent bigint,
        stream_finals_sent bigint,
        stream_errors_sent bigint,
        stream_audio_duration_ms bigint
    );
    DECLARE @late TABLE (
        position int NOT NULL PRIMARY KEY,
        started_at datetime2(6) NOT NULL
    );

    INSERT INTO @wanted (
        position, capacity_id, user_object_id, tenant_object_id, kind, session_id,
        lease_microseconds, heartbeat_microseconds, idle_microseconds, has_rules
    )
    SELECT
        w.position, w.capacity_id, w.user_object_id, w.tenant_object_id, w.kind, w.session_id,
        w.lease_microseconds, w.heartbeat_microseconds, w.idle_microseconds, 0
    FROM dbo.tenure_open_requests_1(@request) AS w;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_lock_cut_shared_1;

    -- A capacity has rules if it has a limit or a tenant. A change of rules needs the exclusive cut lock, so the rules
    -- cannot change until this transaction ends. The read uses the current rows, not row versions. It may wait for lane
    -- `limited`, which may be writing one of these rows. So the read comes before the locks on keys and rows: while it
    -- waits, this transaction holds no lock for which lane `limited` waits.
    UPDATE w
    SET w.has_rules = 1
    FROM @wanted AS w
    INNER JOIN dbo.capacities AS c WITH (READCOMMITTEDLOCK, INDEX (capacities_pkey)) ON w.capacity_id = c.capacity_id
    WHERE c.max_sessions IS NOT NULL OR c.tenant_object_id IS NOT NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- Lock the keys, including free ones, in the order of their index. Without TOP the ORDER BY would be ignored.
    INSERT INTO @live (session_id, position, wanted_tenant_object_id, wanted_kind, has_rules)
    SELECT TOP (1000) s.session_id, w.position, w.tenant_object_id, w.kind, w.has_rules
    FROM @wanted AS w
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_live_key))
        ON w.user_object_id = s.user_object_id AND w.capacity_id = s.capacity_id AND s.closed_at IS NULL
    ORDER BY w.user_object_id, w.capacity_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- Lock and read the rows, in the order of their ids.
    INSERT INTO @old (
        position, wanted_tenant_object_id, wanted_kind, has_rules, session_id, tenant_object_id, kind, state,
        started_at, term_ends_at, deadline_at, lapse_reason,
        lease_microseconds, idle_microseconds, heartbeat_microseconds,
        last_heartbeat_at, last_activity_at, previous_session_id, imported_start_at, modified_at,
        stream_bytes_received, stream_chunks, stream_messages_sent, stream_partials_sent, stream_finals_sent,
        stream_errors_sent, stream_audio_duration_ms
    )
    SELECT TOP (1000)
        l.position, l.wanted_tenant_object_id, l.wanted_kind, l.has_rules,
        s.session_id, s.tenant_object_id, s.kind, s.state,
        s.started_at, s.term_ends_at, s.deadline_at, s.lapse_reason,
        s.lease_microseconds, s.idle_microseconds, s.heartbeat_microseconds,
        s.last_heartbeat_at, s.last_activity_at, s.previous_session_id, s.imported_start_at, s.modified_at,
        s.stream_bytes_received, s.stream_chunks, s.stream_messages_sent, s.stream_partials_sent,
        s.stream_finals_sent, s.stream_errors_sent, s.stream_audio_duration_ms
    FROM @live AS l
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_pkey))
        ON l.session_id = s.session_id
    ORDER BY l.session_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- Read the clock after the rows are locked. Otherwise this procedure could record an end that is earlier than the
    -- instant at which another transaction returned the same session as `existing`.
    SET @now = dbo.tenure_write_now();

    UPDATE o
    SET
        o.outcome = d.outcome,
        o.ended_at = CASE WHEN d.outcome IN ('lapsed', 'upgraded') THEN e.closed_at END
    FROM @old AS o
    CROSS APPLY (
        SELECT
            CASE
                WHEN o.deadline_at > @now AND o.tenant_object_id <> o.wanted_tenant_object_id THEN 'tenant-mismatch'
                WHEN o.deadline_at > @now AND o.kind >= o.wanted_kind THEN 'existing'
                WHEN o.has_rules = 1 THEN 'limited'
                WHEN o.deadline_at > @now THEN 'upgraded'
                ELSE 'lapsed'
            END AS outcome
    ) AS d
    CROSS APPLY dbo.tenure_closed_at_1(o.started_at, o.deadline_at, @now) AS e;

    -- The end of an earlier session of the same key may be later than @now, because the clock was stepped back or
    -- because a session lasts at least one microsecond. The new session must not start before that end. Only this
    -- transaction can be ending sessions of these keys, so READPAST may skip rows that other transactions are writing.
    INSERT INTO @late (position, started_at)
    SELECT w.position, MAX(s.closed_at)
    FROM dbo.sessions AS s WITH (READCOMMITTEDLOCK, READPAST, FORCESEEK, INDEX (sessions_closed_at))
    INNER JOIN @wanted AS w ON s.capacity_id = w.capacity_id AND s.user_object_id = w.user_object_id
    WHERE s.closed_at > @now AND s.closed_at IS NOT NULL AND w.has_rules = 0
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
    FROM @wanted AS w
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
    WHERE (o.position IS NULL AND w.has_rules = 0) OR o.ended_at IS NOT NULL;

    COMMIT TRANSACTION;

    SELECT
        w.position,
        COALESCE(o.outcome, CASE w.has_rules WHEN 1 THEN 'limited' ELSE 'created' END) AS outcome,
        CASE o.outcome WHEN 'upgraded' THEN o.ended_at ELSE COALESCE(l.started_at, @now) END AS opened_at,
        o.session_id, o.tenant_object_id, o.kind, o.state,
        o.started_at, o.term_ends_at, o.deadline_at, o.lapse_reason,
        o.lease_microseconds, o.idle_microseconds, o.heartbeat_microseconds,
        o.last_heartbeat_at, o.last_activity_at, o.previous_session_id, o.imported_start_at, o.modified_at,
        o.stream_bytes_received, o.stream_chunks, o.stream_messages_sent, o.stream_partials_sent,
        o.stream_finals_sent, o.stream_errors_sent, o.stream_audio_duration_ms
    FROM @wanted AS w
    LEFT JOIN @old AS o ON w.position = o.position
    LEFT JOIN @late AS l ON w.position = l.position
    WHERE o.position IS NOT NULL OR l.position IS NOT NULL OR w.has_rules = 1
    UNION ALL
    SELECT
        NULL, 'created', @now,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL;
END;
