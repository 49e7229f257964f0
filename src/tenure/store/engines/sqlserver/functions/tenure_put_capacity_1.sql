-- Sets the rules of a capacity, and returns them. The capacity may have no row to lock, so the procedure takes the
-- exclusive cut lock: every transaction that opens sessions either commits before the procedure gets this lock, or sees
-- the new rules. The procedure waits for the lock 200 ms at most, then raises an error, and the caller retries. If the
-- capacity already has these rules, the procedure changes nothing and writes no audit entry.
--
-- @scope is the tenant that the caller is bound to, or NULL. A bound caller can change only a capacity that is bound to
-- the same tenant. For any other capacity, and for one that has no row, the procedure changes nothing and returns no
-- row.
--
-- @request: {"capacity", "tenant", "maxSessions", "whenFull", "scope", "actor": {"entry", "subject", "name",
-- "request"}}, without the values that are not set.
CREATE OR ALTER PROCEDURE dbo.tenure_put_capacity_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @capacity_id uniqueidentifier = JSON_VALUE(@request, '$.capacity'),
        @tenant_object_id uniqueidentifier = JSON_VALUE(@request, '$.tenant'),
        @max_sessions int = JSON_VALUE(@request, '$.maxSessions'),
        @when_full varchar(16) = JSON_VALUE(@request, '$.whenFull'),
        @scope uniqueidentifier = JSON_VALUE(@request, '$.scope'),
        @actor nvarchar(MAX) = JSON_QUERY(@request, '$.actor'),
        @id varchar(36),
        @old_tenant uniqueidentifier,
        @old_max int,
        @old_when_full varchar(16),
        @detail nvarchar(1000),
        @created_at datetime2(6),
        @modified_at datetime2(6),
        @now datetime2(6);

    BEGIN TRANSACTION;
    EXEC dbo.tenure_lock_cut_exclusive_1;

    SELECT
        @created_at = c.created_at,
        @modified_at = c.modified_at,
        @old_tenant = c.tenant_object_id,
        @old_max = c.max_sessions,
        @old_when_full = c.when_full
    FROM dbo.capacities AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (capacities_pkey))
    WHERE c.capacity_id = @capacity_id;

    SET @now = dbo.tenure_now();
    SET @id = LOWER(CONVERT(varchar(36), @capacity_id));
    SET @detail = CONCAT(
        dbo.tenure_rules_text_1(@old_max, @old_when_full, @old_tenant), N' -> ',
        dbo.tenure_rules_text_1(@max_sessions, @when_full, @tenant_object_id)
    );

    IF @scope IS NOT NULL AND (@old_tenant IS NULL OR @old_tenant <> @scope)
        -- Outside the scope: the result is empty.
        SET @id = NULL;
    ELSE IF @created_at IS NULL
    BEGIN
        SET @created_at = @now;
        SET @modified_at = @now;
        INSERT INTO dbo.capacities (
            capacity_id, tenant_object_id, created_at, modified_at, max_sessions, slack, when_full
        )
        VALUES (@capacity_id, @tenant_object_id, @created_at, @modified_at, @max_sessions, 0, @when_full);
        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @actor, @action = 'capacity.changed', @target = @id, @detail = @detail, @changes = 1;
    END;
    ELSE IF EXISTS (
        SELECT @old_max, @old_when_full, @old_tenant
        EXCEPT
        SELECT @max_sessions, @when_full, @tenant_object_id
    )
    BEGIN
        IF @modified_at < @now
            SET @modified_at = @now;
        UPDATE dbo.capacities
        SET
            tenant_object_id = @tenant_object_id,
            modified_at = @modified_at,
            max_sessions = @max_sessions,
            slack = 0,
            when_full = @when_full
        WHERE capacity_id = @capacity_id;
        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @actor, @action = 'capacity.changed', @target = @id, @detail = @detail, @changes = 1;
    END;
    COMMIT TRANSACTION;

    SELECT
        @capacity_id AS capacity_id,
        @tenant_object_id AS tenant_object_id,
        @created_at AS created_at,
        @modified_at AS modified_at,
        @max_sessions AS max_sessions,
        @when_full AS when_full
    WHERE @id IS NOT NULL;
END;
