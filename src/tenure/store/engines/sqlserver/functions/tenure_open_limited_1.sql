-- Opens sessions in lane `limited`, for capacities that have a limit or belong to a tenant. @request is the same as in
-- tenure_open_1. Every open request gets a result row. The outcomes `session-limit` (no free seat) and
-- `capacity-of-another-tenant` are final. A request that gets `limited` is retried in this lane. A request that gets
-- `again` is retried in lane `create`, because its capacity no longer has rules. A row `closing` returns a lapsed or
-- evicted session that this procedure ended: `lapse_reason` is its close reason, and `opened_at` is its end.
--
-- Order: acquire the cut lock, lock the capacities in the order of their ids, lock the keys of the requests in the
-- order of their index, lock the rows of these keys in the order of their ids, read the clock, count, lock sessions of
-- other users (only those whose key and row no other transaction holds), read the clock again, write. One batch at a
-- time gives out the seats of a capacity, and no other transaction can open a session on this capacity meanwhile.
--
-- The count is an upper bound, because other transactions may end sessions at the same time. The count reads the
-- current rows and keeps no lock. It may wait for a transaction that is writing one of these rows; that transaction
-- waits for no key and no row, so this wait cannot cause a deadlock. Locking the counted sessions would lock all
-- sessions of the capacity, and would not lock their keys in the order of the index. So the lapsed sessions and the
-- victims (live sessions to evict) are found in two steps: read them without keeping a lock, then lock those that no
-- other transaction holds and check them again. `slack` is the number of seats known to be free since the last count. A
-- batch counts only if it needs more seats than `slack`.
CREATE OR ALTER PROCEDURE dbo.tenure_open_limited_1 @request nvarchar(MAX)
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
        @closings_left int = 500,
        @probe datetime2(6),
        @now datetime2(6);

    -- `place` numbers the requests that need a seat of the same capacity.
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
        outcome varchar(32),
        place int,
        PRIMARY KEY (user_object_id, capacity_id)
    );
    DECLARE @asked TABLE (
        capacity_id uniqueidentifier NOT NULL PRIMARY KEY
    );
    -- Of the sessions of this batch's users, `held` counts those whose users need no further seat, and `recorded` those
    -- that have lapsed and whose users need a seat. `seekers` is the number of requests that need a seat.
    -- `taken` is NULL unless the seats were counted. `short` is the number of missing seats, and `quota` the number of
    -- sessions that may be ended to free seats.
    DECLARE @seats TABLE (
        capacity_id uniqueidentifier NOT NULL PRIMARY KEY,
        tenant_object_id uniqueidentifier,
        max_sessions int,
        slack int NOT NULL,
        when_full varchar(16) NOT NULL,
        seekers int,
        held int,
        recorded int,
        taken int,
        lapsed int,
        short int,
        quota int,
        victims int,
        free int,
        refusal varchar(16),
        starts_at datetime2(6)
    );
    DECLARE @live TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        position int NOT NULL
    );
    DECLARE @old TABLE (
        position int NOT NULL PRIMARY KEY,
        capacity_id uniqueidentifier NOT NULL,
        session_id uniqueidentifier NOT NULL UNIQUE,
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
    DECLARE @taken TABLE (
        capacity_id uniqueidentifier NOT NULL,
        session_id uniqueidentifier NOT NULL,
        PRIMARY KEY (capacity_id, session_id)
    );
    DECLARE @candidate TABLE (
        capacity_id uniqueidentifier NOT NULL,
        place int NOT NULL,
        session_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        last_activity_at datetime2(6) NOT NULL,
        has_lapsed bit NOT NULL,
        PRIMARY KEY (capacity_id, place)
    );
    -- The sessions that this batch ends. Only sessions of users of this batch have a position.
    DECLARE @over TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY,
        capacity_id uniqueidentifier NOT NULL,
        position int,
        started_at datetime2(6) NOT NULL,
        deadline_at datetime2(6) NOT NULL,
        lapse_reason varchar(16) NOT NULL,
        reason varchar(16) NOT NULL,
        ended_at datetime2(6)
    );

    INSERT INTO @wanted (
        position, capacity_id, user_object_id, tenant_object_id, kind, session_id,
        lease_microseconds, heartbeat_microseconds, idle_microseconds
    )
    SELECT
        w.position, w.capacity_id, w.user_object_id, w.tenant_object_id, w.kind, w.session_id,
        w.lease_microseconds, w.heartbeat_microseconds, w.idle_microseconds
    FROM dbo.tenure_open_requests_1(@request) AS w;

    INSERT INTO @asked (capacity_id)
    SELECT DISTINCT w.capacity_id
    FROM @wanted AS w;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_lock_cut_shared_1;

    -- Lock the capacities, in the order of their ids, before any key.
    INSERT INTO @seats (capacity_id, tenant_object_id, max_sessions, slack, when_full)
    SELECT TOP (1000) c.capacity_id, c.tenant_object_id, c.max_sessions, c.slack, c.when_full
    FROM @asked AS a
    INNER JOIN dbo.capacities AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (capacities_pkey))
        ON a.capacity_id = c.capacity_id
    WHERE c.max_sessions IS NOT NULL OR c.tenant_object_id IS NOT NULL
    ORDER BY a.capacity_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE w
    SET w.outcome = 'again'
    FROM @wanted AS w
    WHERE NOT EXISTS (SELECT 1 FROM @seats AS c WHERE c.capacity_id = w.capacity_id);

    -- Lock the keys in the order of their index, then the rows in the order of their ids, like tenure_open_1.
    INSERT INTO @live (session_id, position)
    SELECT TOP (1000) s.session_id, w.position
    FROM @wanted AS w
    INNER JOIN dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_live_key))
        ON w.user_object_id = s.user_object_id AND w.capacity_id = s.capacity_id AND s.closed_at IS NULL
    WHERE w.outcome IS NULL
    ORDER BY w.user_object_id, w.capacity_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    INSERT INTO @old (
        position, capacity_id, session_id, tenant_object_id, kind, state,
        started_at, term_ends_at, deadline_at, lapse_reason,
        lease_microseconds, idle_microseconds, heartbeat_microseconds,
        last_heartbeat_at, last_activity_at, previous_session_id, imported_start_at, modified_at,
        stream_bytes_received, stream_chunks, stream_messages_sent, stream_partials_sent, stream_finals_sent,
        stream_errors_sent, stream_audio_duration_ms
    )
    SELECT TOP (1000)
        l.position, s.capacity_id, s.session_id, s.tenant_object_id, s.kind, s.state,
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

    SET @probe = dbo.tenure_write_now();

    -- A user who has a session needs a seat only if that session has lapsed.
    UPDATE w
    SET
        w.outcome = CASE
            WHEN o.deadline_at > @probe AND o.tenant_object_id <> w.tenant_object_id THEN 'tenant-mismatch'
            WHEN o.deadline_at > @probe AND o.kind >= w.kind THEN 'existing'
            WHEN c.tenant_object_id <> w.tenant_object_id THEN 'capacity-of-another-tenant'
            WHEN o.deadline_at > @probe THEN 'upgraded'
            ELSE 'seeking'
        END
    FROM @wanted AS w
    INNER JOIN @seats AS c ON w.capacity_id = c.capacity_id
    LEFT JOIN @old AS o ON w.position = o.position;

    UPDATE w
    SET w.place = n.place
    FROM @wanted AS w
    INNER JOIN (
        SELECT
            k.position,
            ROW_NUMBER() OVER (PARTITION BY k.capacity_id ORDER BY k.position) AS place
        FROM @wanted AS k
        WHERE k.outcome = 'seeking'
    ) AS n ON w.position = n.position;

    UPDATE c
    SET
        c.seekers = n.seekers,
        c.held = n.held,
        c.recorded = n.recorded,
        c.quota = 0,
        c.victims = 0,
        c.refusal = 'session-limit'
    FROM @seats AS c
    CROSS APPLY (
        SELECT
            COALESCE(SUM(CASE WHEN w.outcome = 'seeking' THEN 1 ELSE 0 END), 0) AS seekers,
            COALESCE(SUM(CASE WHEN w.outcome <> 'seeking' AND o.position IS NOT NULL THEN 1 ELSE 0 END), 0) AS held,
            COALESCE(SUM(CASE WHEN w.outcome = 'seeking' AND o.position IS NOT NULL THEN 1 ELSE 0 END), 0) AS recorded
        FROM @wanted AS w
        LEFT JOIN @old AS o ON w.position = o.position
        WHERE w.capacity_id = c.capacity_id
    ) AS n;

    -- Count the seats taken, under the lock of the capacity: read first the ids from the index alone, then the rows by
    -- id. A read that locked an entry of the index and then the row could deadlock with a transaction that ends the
    -- session, because that transaction locks the row and then the entry.
    IF EXISTS (SELECT 1 FROM @seats AS c WHERE c.seekers > c.slack AND c.max_sessions IS NOT NULL)
    BEGIN
        INSERT INTO @taken (capacity_id, session_id)
        SELECT c.capacity_id, s.session_id
        FROM @seats AS c
        INNER JOIN dbo.sessions AS s WITH (READCOMMITTEDLOCK, INDEX (sessions_live_capacity))
            ON c.capacity_id = s.capacity_id AND s.closed_at IS NULL AND s.kind < 4
        WHERE c.seekers > c.slack AND c.max_sessions IS NOT NULL
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

        UPDATE c
        SET
            c.taken = n.taken - c.recorded,
            c.lapsed = n.lapsed - c.recorded,
            c.short = n.taken - c.recorded + c.seekers - c.max_sessions
        FROM @seats AS c
        CROSS APPLY (
            SELECT
                COUNT(*) AS taken,
                COALESCE(SUM(CASE WHEN s.deadline_at <= @probe THEN 1 ELSE 0 END), 0) AS lapsed
            FROM @taken AS t
            INNER JOIN dbo.sessions AS s WITH (READCOMMITTEDLOCK, INDEX (sessions_pkey))
                ON t.session_id = s.session_id
            WHERE t.capacity_id = c.capacity_id AND s.closed_at IS NULL
        ) AS n
        WHERE c.seekers > c.slack AND c.max_sessions IS NOT NULL
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    END;

    IF EXISTS (SELECT 1 FROM @seats AS c WHERE c.short > 0 AND (c.lapsed > 0 OR c.when_full = 'evictOldest'))
    BEGIN
        -- Read more sessions than are needed, because other transactions may hold some of them.
        INSERT INTO @candidate (capacity_id, place, session_id, user_object_id, last_activity_at, has_lapsed)
        SELECT
            c.capacity_id,
            ROW_NUMBER() OVER (
                PARTITION BY c.capacity_id ORDER BY n.has_lapsed DESC, n.last_activity_at, n.session_id
            ),
            n.session_id, n.user_object_id, n.last_activity_at, n.has_lapsed
        FROM @seats AS c
        CROSS APPLY (
            SELECT TOP (1000)
                s.session_id, s.user_object_id, s.last_activity_at,
                CASE WHEN s.deadline_at <= @probe THEN 1 ELSE 0 END AS has_lapsed
            FROM @taken AS t
            INNER JOIN dbo.sessions AS s WITH (READCOMMITTEDLOCK, INDEX (sessions_pkey))
                ON t.session_id = s.session_id
            WHERE
                t.capacity_id = c.capacity_id AND s.closed_at IS NULL
                AND NOT EXISTS (SELECT 1 FROM @old AS o WHERE o.session_id = s.session_id)
            ORDER BY CASE WHEN s.deadline_at <= @probe THEN 0 ELSE 1 END, s.last_activity_at, s.session_id
        ) AS n
        WHERE c.short > 0 AND (c.lapsed > 0 OR c.when_full = 'evictOldest')
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

        -- One transaction ends at most @closings_left sessions of other users. Capacities with lower ids get their part
        -- first.
        UPDATE c
        SET
            c.quota = CASE
                WHEN n.closings_left <= 0 THEN 0
                WHEN n.closings_left < c.short THEN n.closings_left
                ELSE c.short
            END
        FROM @seats AS c
        INNER JOIN (
            SELECT
                a.capacity_id,
                @closings_left + a.short
                - SUM(a.short) OVER (ORDER BY a.capacity_id ROWS UNBOUNDED PRECEDING) AS closings_left
            FROM @seats AS a
            WHERE a.short > 0 AND a.lapsed > 0
        ) AS n ON c.capacity_id = n.capacity_id;

        -- Lock the lapsed sessions whose key and row no other transaction holds.
        INSERT INTO @over (session_id, capacity_id, started_at, deadline_at, lapse_reason, reason)
        SELECT v.session_id, c.capacity_id, v.started_at, v.deadline_at, v.lapse_reason, v.lapse_reason
        FROM @seats AS c
        CROSS APPLY (
            SELECT TOP (c.quota)
                s.session_id, s.started_at, s.deadline_at, s.lapse_reason
            FROM @candidate AS n
            INNER JOIN dbo.sessions AS k WITH (XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_live_key))
                ON n.capacity_id = k.capacity_id AND n.user_object_id = k.user_object_id AND k.closed_at IS NULL
            INNER JOIN dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_pkey))
                ON k.session_id = s.session_id
            WHERE
                n.capacity_id = c.capacity_id AND n.has_lapsed = 1
                AND n.session_id = s.session_id AND s.deadline_at <= @probe
            ORDER BY n.place
        ) AS v
        WHERE c.short > 0 AND c.lapsed > 0
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

        UPDATE c
        SET c.taken = c.taken - n.found, c.lapsed = c.lapsed - n.found, c.short = c.short - n.found
        FROM @seats AS c
        CROSS APPLY (SELECT COUNT(*) AS found FROM @over AS v WHERE v.capacity_id = c.capacity_id) AS n
        WHERE c.short > 0;

        -- Some lapsed sessions are still counted, because other transactions hold them or because this transaction has
        -- reached its limit of closings. So the requests that get no seat are retried.
        UPDATE c
        SET c.refusal = 'limited'
        FROM @seats AS c
        WHERE c.short > 0 AND c.lapsed > 0;

        SET @closings_left = @closings_left - (SELECT COUNT(*) FROM @over);
        UPDATE c
        SET
            c.quota = CASE
                WHEN n.closings_left <= 0 THEN 0
                WHEN n.closings_left < c.short THEN n.closings_left
                ELSE c.short
            END
        FROM @seats AS c
        INNER JOIN (
            SELECT
                a.capacity_id,
                @closings_left + a.short
                - SUM(a.short) OVER (ORDER BY a.capacity_id ROWS UNBOUNDED PRECEDING) AS closings_left
            FROM @seats AS a
            WHERE a.short > 0 AND a.lapsed <= 0 AND a.when_full = 'evictOldest' AND a.max_sessions > 0
        ) AS n ON c.capacity_id = n.capacity_id;

        -- Lock victims that no other transaction holds, those with the oldest last activity first.
        INSERT INTO @over (session_id, capacity_id, started_at, deadline_at, lapse_reason, reason)
        SELECT v.session_id, c.capacity_id, v.started_at, v.deadline_at, v.lapse_reason, 'EVICTED'
        FROM @seats AS c
        CROSS APPLY (
            SELECT TOP (c.quota)
                s.session_id, s.started_at, s.deadline_at, s.lapse_reason
            FROM @candidate AS n
            INNER JOIN dbo.sessions AS k WITH (XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_live_key))
                ON n.capacity_id = k.capacity_id AND n.user_object_id = k.user_object_id AND k.closed_at IS NULL
            INNER JOIN dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (sessions_pkey))
                ON k.session_id = s.session_id
            WHERE
                n.capacity_id = c.capacity_id AND n.has_lapsed = 0
                AND n.session_id = s.session_id AND n.last_activity_at = s.last_activity_at
            ORDER BY n.place
        ) AS v
        WHERE c.short > 0 AND c.lapsed <= 0 AND c.when_full = 'evictOldest' AND c.max_sessions > 0
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

        UPDATE c
        SET c.victims = n.found
        FROM @seats AS c
        CROSS APPLY (
            SELECT COUNT(*) AS found FROM @over AS v WHERE v.capacity_id = c.capacity_id AND v.reason = 'EVICTED'
        ) AS n;

        -- Evict only if the evictions free a seat, or if this transaction has reached its limit of closings. In the
        -- second case, the next transaction continues.
        DELETE v
        FROM @over AS v
        INNER JOIN @seats AS c ON v.capacity_id = c.capacity_id
        WHERE
            v.reason = 'EVICTED' AND c.taken - c.victims >= c.max_sessions
            AND NOT (c.victims = c.quota AND c.quota < c.short);

        UPDATE c
        SET
            c.taken = c.taken - n.found,
            -- `limited` means a retry. If this batch has reached its limit of closings, the next batch continues. The
            -- next batch may also evict sessions of this batch's users, which this batch does not evict.
            c.refusal = CASE
                WHEN c.victims = c.quota AND c.quota < c.short THEN 'limited'
                WHEN c.held > 0 OR c.taken - n.found < c.max_sessions THEN 'limited'
                ELSE 'session-limit'
            END
        FROM @seats AS c
        CROSS APPLY (
            SELECT COUNT(*) AS found FROM @over AS v WHERE v.capacity_id = c.capacity_id AND v.reason = 'EVICTED'
        ) AS n
        WHERE c.short > 0 AND c.lapsed <= 0 AND c.when_full = 'evictOldest' AND c.max_sessions > 0;
    END;

    -- All rows are locked now, so the clock for the writes is read here.
    SET @now = dbo.tenure_write_now();
    IF @now < @probe
        SET @now = @probe;

    UPDATE c
    SET
        c.free = CASE
            WHEN c.max_sessions IS NULL THEN c.seekers
            WHEN c.taken IS NULL THEN c.slack
            WHEN c.taken < c.max_sessions THEN c.max_sessions - c.taken
            ELSE 0
        END
    FROM @seats AS c;

    -- If a session to be upgraded has lapsed since the first read of the clock, the request is retried.
    UPDATE w
    SET w.outcome = 'limited'
    FROM @wanted AS w
    INNER JOIN @old AS o ON w.position = o.position
    WHERE w.outcome = 'upgraded' AND o.deadline_at <= @now;

    -- Also end sessions of this batch's users: the lapsed session of each user who needs a seat, and the sessions that
    -- are replaced by a higher kind.
    INSERT INTO @over (session_id, capacity_id, position, started_at, deadline_at, lapse_reason, reason)
    SELECT
        o.session_id, o.capacity_id, o.position, o.started_at, o.deadline_at, o.lapse_reason,
        CASE w.outcome WHEN 'upgraded' THEN 'UPGRADED' ELSE o.lapse_reason END
    FROM @wanted AS w
    INNER JOIN @old AS o ON w.position = o.position
    WHERE w.outcome IN ('upgraded', 'seeking');

    UPDATE v
    SET
        v.reason = CASE WHEN v.deadline_at <= @now THEN v.lapse_reason ELSE v.reason END,
        v.ended_at = n.closed_at
    FROM @over AS v
    CROSS APPLY dbo.tenure_closed_at_1(v.started_at, v.deadline_at, @now) AS n;

    UPDATE w
    SET w.outcome = CASE WHEN w.place <= c.free THEN 'created' ELSE c.refusal END
    FROM @wanted AS w
    INNER JOIN @seats AS c ON w.capacity_id = c.capacity_id
    WHERE w.outcome = 'seeking';

    IF EXISTS (SELECT 1 FROM @over)
        UPDATE s
        SET
            s.state = 'closed',
            s.check_at = NULL,
            s.closed_at = v.ended_at,
            s.modified_at = v.ended_at,
            s.close_reason = v.reason
        FROM @over AS v
        INNER JOIN dbo.sessions AS s ON v.session_id = s.session_id
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- A session of this capacity may have an end after @now, because the clock was stepped back or because a session
    -- lasts at least one microsecond. The new sessions then start at that end. Sessions that other transactions are
    -- ending at this moment were counted as taken, so their ends do not matter here.
    UPDATE c
    SET c.starts_at = COALESCE(n.closed_at, @now)
    FROM @seats AS c
    OUTER APPLY (
        SELECT MAX(s.closed_at) AS closed_at
        FROM dbo.sessions AS s WITH (READCOMMITTEDLOCK, READPAST, FORCESEEK, INDEX (sessions_closed_at))
        WHERE s.closed_at > @now AND s.closed_at IS NOT NULL AND s.capacity_id = c.capacity_id
    ) AS n;

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
    INNER JOIN @seats AS c ON w.capacity_id = c.capacity_id
    LEFT JOIN @old AS o ON w.position = o.position
    LEFT JOIN @over AS v ON o.session_id = v.session_id
    CROSS APPLY (
        SELECT
            CASE w.outcome WHEN 'upgraded' THEN o.session_id END AS previous_session_id,
            CASE w.outcome WHEN 'upgraded' THEN v.ended_at ELSE c.starts_at END AS started_at,
            COALESCE(
                w.lease_microseconds, CASE w.outcome WHEN 'upgraded' THEN o.lease_microseconds ELSE @lease END
            ) AS lease_microseconds,
            COALESCE(
                w.idle_microseconds, CASE w.outcome WHEN 'upgraded' THEN o.idle_microseconds ELSE @idle END
            ) AS idle_microseconds,
            CASE
                WHEN w.lease_microseconds IS NOT NULL THEN w.heartbeat_microseconds
                WHEN w.outcome = 'upgraded' THEN o.heartbeat_microseconds
                ELSE @heartbeat
            END AS heartbeat_microseconds
    ) AS n
    CROSS APPLY dbo.tenure_span_1(n.started_at, @term, n.lease_microseconds, n.idle_microseconds) AS p
    WHERE w.outcome IN ('created', 'upgraded');

    -- Write the rows of the capacities last, and only if the slack can change: lanes `create` and `reopen` read the
    -- rules from these rows, and wait while a row is being written.
    UPDATE k
    SET k.slack = CASE WHEN c.seekers < c.free THEN c.free - c.seekers ELSE 0 END
    FROM @seats AS c
    INNER JOIN dbo.capacities AS k ON c.capacity_id = k.capacity_id
    WHERE c.max_sessions IS NOT NULL AND c.seekers > 0 AND (c.slack > 0 OR c.free > 0)
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT
        w.position, w.outcome,
        CASE w.outcome WHEN 'upgraded' THEN v.ended_at ELSE c.starts_at END AS opened_at,
        o.session_id, o.tenant_object_id, o.kind, o.state,
        o.started_at, o.term_ends_at, o.deadline_at, o.lapse_reason,
        o.lease_microseconds, o.idle_microseconds, o.heartbeat_microseconds,
        o.last_heartbeat_at, o.last_activity_at, o.previous_session_id, o.imported_start_at, o.modified_at,
        o.stream_bytes_received, o.stream_chunks, o.stream_messages_sent, o.stream_partials_sent,
        o.stream_finals_sent, o.stream_errors_sent, o.stream_audio_duration_ms,
        CAST(NULL AS uniqueidentifier) AS user_object_id, CAST(NULL AS uniqueidentifier) AS capacity_id
    FROM @wanted AS w
    LEFT JOIN @seats AS c ON w.capacity_id = c.capacity_id
    LEFT JOIN @old AS o ON w.position = o.position
    LEFT JOIN @over AS v ON o.session_id = v.session_id
    UNION ALL
    SELECT
        COALESCE(v.position, 0), 'closing', v.ended_at,
        v.session_id, s.tenant_object_id, NULL, NULL, NULL, NULL, NULL, v.reason, NULL, NULL, NULL, NULL, NULL, NULL,
        NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, s.user_object_id, s.capacity_id
    FROM @over AS v
    -- These columns never change, so they can be read after the commit.
    INNER JOIN dbo.sessions AS s ON v.session_id = s.session_id
    WHERE v.reason <> 'UPGRADED';
END;
