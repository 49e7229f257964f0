-- The cut lock, alone: nobody writes sessions until the end of the transaction. Asked for briefly, since all writers queue
-- behind whoever waits for it. sp_getapplock does not raise, so its code is looked at.
CREATE PROCEDURE dbo.tenure_hold_off_all_writers_1
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @granted int;
    EXEC @granted = sys.sp_getapplock
        @Resource = N'tenure.cut', @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 200;
    IF @granted < 0
        THROW 51222, N'tenure: the cut lock was not granted in time', 1;
END;

-- statement-break

-- Sets the rules of a capacity. A capacity without a row has nothing to lock, so the cut lock is taken alone: every open
-- either was before this or sees it.
--
-- @request: {"capacity", "tenant", "maxSessions", "whenFull"}, without those that are not set.
CREATE PROCEDURE dbo.tenure_put_capacity_1 @request nvarchar(MAX)
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
        @created_at datetime2(6),
        @modified_at datetime2(6),
        @now datetime2(6);

    BEGIN TRANSACTION;
    EXEC dbo.tenure_hold_off_all_writers_1;

    SELECT @created_at = c.created_at, @modified_at = c.modified_at
    FROM dbo.capacities AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (capacities_pkey))
    WHERE c.capacity_id = @capacity_id;

    SET @now = dbo.tenure_now();
    IF @modified_at IS NULL OR @modified_at < @now
        SET @modified_at = @now;

    IF @created_at IS NULL
    BEGIN
        SET @created_at = @now;
        INSERT INTO dbo.capacities (
            capacity_id, tenant_object_id, created_at, modified_at, max_sessions, slack, when_full
        )
        VALUES (@capacity_id, @tenant_object_id, @created_at, @modified_at, @max_sessions, 0, @when_full);
    END;
    ELSE
        UPDATE dbo.capacities
        SET
            tenant_object_id = @tenant_object_id,
            modified_at = @modified_at,
            max_sessions = @max_sessions,
            slack = 0,
            when_full = @when_full
        WHERE capacity_id = @capacity_id;
    COMMIT TRANSACTION;

    SELECT
        @capacity_id AS capacity_id,
        @tenant_object_id AS tenant_object_id,
        @created_at AS created_at,
        @modified_at AS modified_at,
        @max_sessions AS max_sessions,
        @when_full AS when_full;
END;

-- statement-break

-- Deletes the rules of a capacity. What they were comes back; nothing, if there were none.
CREATE PROCEDURE dbo.tenure_delete_capacity_1 @capacity_id uniqueidentifier
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @was TABLE (
        capacity_id uniqueidentifier NOT NULL,
        tenant_object_id uniqueidentifier,
        created_at datetime2(6) NOT NULL,
        modified_at datetime2(6) NOT NULL,
        max_sessions int,
        when_full varchar(16) NOT NULL
    );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_hold_off_all_writers_1;

    INSERT INTO @was (capacity_id, tenant_object_id, created_at, modified_at, max_sessions, when_full)
    SELECT c.capacity_id, c.tenant_object_id, c.created_at, c.modified_at, c.max_sessions, c.when_full
    FROM dbo.capacities AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (capacities_pkey))
    WHERE c.capacity_id = @capacity_id;

    DELETE FROM dbo.capacities WHERE capacity_id = @capacity_id;
    COMMIT TRANSACTION;

    SELECT w.capacity_id, w.tenant_object_id, w.created_at, w.modified_at, w.max_sessions, w.when_full
    FROM @was AS w;
END;
