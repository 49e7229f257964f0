-- Sets the rules of a capacity, and returns them. The capacity may have no row to lock, so the procedure takes the
-- exclusive cut lock: every open either ends before that or sees the new rules. It waits for the lock 200 ms at most,
-- then raises an error, and the caller retries.
--
-- @request: {"capacity", "tenant", "maxSessions", "whenFull"}, without the values that are not set.
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
        @created_at datetime2(6),
        @modified_at datetime2(6),
        @now datetime2(6);

    BEGIN TRANSACTION;
    EXEC dbo.tenure_lock_cut_exclusive_1;

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
