-- Imports live sessions of another service, and returns an outcome for each session:
--
-- - `imported`: the session was inserted or, if @writes is 0, can be inserted
-- - `existing`: a session with this id is live
-- - `over`: a session with this id has ended
-- - `ended`: the term of the session is over
-- - `tenant-mismatch`: the capacity is bound to another tenant
-- - `conflict`: the key (capacity and user) has another session, whose end is not recorded or is later than now
--
-- If @writes is 0, the procedure only returns the outcomes.
--
-- An imported session starts at the current time, like any new session, so that windows and events up to now do not
-- change. `imported_start_at` stores its start in the other service. An import may take more seats than the capacity
-- has. It sets the slack of the capacity to 0, so that the next open counts the seats.
--
-- Order: acquire the cut lock exclusively (so that no session is written meanwhile), read the clock, read, write.
--
-- @request: {"sessions": [[position, session, tenant, user, capacity, kind, startedAt, endsAt, lease, heartbeat, idle],
-- …], "draft": {"entry", "subject", "name", "request", "action", "target", "detail"}}
CREATE OR ALTER PROCEDURE dbo.tenure_import_sessions_1 @request nvarchar(MAX), @writes bit
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @now datetime2(6),
        @imported int = 0,
        @draft nvarchar(MAX) = JSON_QUERY(@request, '$.draft'),
        @action varchar(32) = JSON_VALUE(@request, '$.draft.action'),
        @target varchar(200) = JSON_VALUE(@request, '$.draft.target'),
        @detail nvarchar(1000) = JSON_VALUE(@request, '$.draft.detail');
    DECLARE @wanted TABLE (
        position int NOT NULL PRIMARY KEY,
        session_id uniqueidentifier NOT NULL,
        tenant_object_id uniqueidentifier NOT NULL,
        user_object_id uniqueidentifier NOT NULL,
        capacity_id uniqueidentifier NOT NULL,
        kind smallint NOT NULL,
        started_at datetime2(6) NOT NULL,
        ends_at datetime2(6) NOT NULL,
        lease_microseconds bigint,
        heartbeat_microseconds bigint,
        idle_microseconds bigint,
        outcome varchar(16) NOT NULL
    );

    INSERT INTO @wanted (
        position, session_id, tenant_object_id, user_object_id, capacity_id, kind, started_at, ends_at,
        lease_microseconds, heartbeat_microseconds, idle_microseconds, outcome
    )
    SELECT
        j.position, j.session_id, j.tenant_object_id, j.user_object_id, j.capacity_id, j.kind, j.started_at, j.ends_at,
        j.lease_microseconds, j.heartbeat_microseconds, j.idle_microseconds, 'imported'
    FROM OPENJSON(@request, '$.sessions') WITH (
        position int '$[0]',
        session_id uniqueidentifier '$[1]',
        tenant_object_id uniqueidentifier '$[2]',
        user_object_id uniqueidentifier '$[3]',
        capacity_id uniqueidentifier '$[4]',
        kind smallint '$[5]',
        started_at datetime2(6) '$[6]',
        ends_at datetime2(6) '$[7]',
        lease_microseconds bigint '$[8]',
        heartbeat_microseconds bigint '$[9]',
        idle_microseconds bigint '$[10]'
    ) AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_lock_cut_exclusive_1;
    SET @now = dbo.tenure_write_now();

    UPDATE w
    SET
        w.outcome = CASE
            WHEN EXISTS (
                SELECT 1
                FROM dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_pkey))
                WHERE s.session_id = w.session_id AND s.closed_at IS NULL AND s.deadline_at > @now
            ) THEN 'existing'
            WHEN EXISTS (
                SELECT 1
                FROM dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_pkey))
                WHERE s.session_id = w.session_id
            ) THEN 'over'
            WHEN w.ends_at <= @now THEN 'ended'
            WHEN EXISTS (
                SELECT 1
                FROM dbo.capacities AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (capacities_pkey))
                WHERE c.capacity_id = w.capacity_id AND c.tenant_object_id <> w.tenant_object_id
            ) THEN 'tenant-mismatch'
            WHEN EXISTS (
                SELECT 1
                FROM dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_live_key))
                WHERE
                    s.capacity_id = w.capacity_id AND s.user_object_id = w.user_object_id AND s.closed_at IS NULL
            ) THEN 'conflict'
            WHEN EXISTS (
                SELECT 1
                FROM dbo.sessions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (sessions_closed_at))
                WHERE
                    s.closed_at > @now AND s.capacity_id = w.capacity_id AND s.user_object_id = w.user_object_id
            ) THEN 'conflict'
            ELSE 'imported'
        END
    FROM @wanted AS w;

    IF @writes = 1
    BEGIN
        INSERT INTO dbo.sessions (
            session_id, tenant_object_id, user_object_id, capacity_id, started_at, imported_start_at, term_ends_at,
            deadline_at, check_at, last_heartbeat_at, last_activity_at, modified_at,
            lease_microseconds, idle_microseconds, heartbeat_microseconds, kind, state, lapse_reason
        )
        SELECT
            w.session_id, w.tenant_object_id, w.user_object_id, w.capacity_id, @now, w.started_at, w.ends_at,
            d.deadline_at, d.deadline_at, @now, @now, @now,
            w.lease_microseconds, w.idle_microseconds, w.heartbeat_microseconds, w.kind, 'created', d.lapse_reason
        FROM @wanted AS w
        CROSS APPLY dbo.tenure_deadline_1(w.ends_at, @now, w.lease_microseconds, @now, w.idle_microseconds) AS d
        WHERE w.outcome = 'imported';
        SET @imported = @@ROWCOUNT;
    END;

    IF @imported > 0
    BEGIN
        UPDATE c
        SET c.slack = 0
        FROM dbo.capacities AS c
        WHERE c.slack > 0 AND c.capacity_id IN (SELECT w.capacity_id FROM @wanted AS w WHERE w.outcome = 'imported');
        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @draft, @action = @action, @target = @target, @detail = @detail,
            @changes = @imported;
    END;

    COMMIT TRANSACTION;

    SELECT w.position, w.outcome
    FROM @wanted AS w;
END;
