-- Deletes up to @limit rows of a mark of usage, under the fence of the job that writes marks. A call that finds fewer
-- than @limit rows also deletes the mark itself. Until then the mark is incomplete, so no sum uses it. Returns the
-- number of deleted rows.
--
-- Order: check the fence (which locks the lease), write the mark, delete its rows.
--
-- @request: {"at"}
CREATE OR ALTER PROCEDURE dbo.tenure_delete_mark_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @limit int,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @at datetime2(6) = JSON_VALUE(@request, '$.at'),
        @deleted int;
    DECLARE @old TABLE (
        tenant_object_id uniqueidentifier NOT NULL,
        capacity_id uniqueidentifier NOT NULL,
        kind smallint NOT NULL,
        PRIMARY KEY (tenant_object_id, capacity_id, kind)
    );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    UPDATE dbo.usage_marks
    SET state = 'incomplete'
    WHERE marked_at = @at;

    INSERT INTO @old (tenant_object_id, capacity_id, kind)
    SELECT TOP (@limit) s.tenant_object_id, s.capacity_id, s.kind
    FROM dbo.usage_mark_sums AS s WITH (READCOMMITTEDLOCK, INDEX (usage_mark_sums_pkey))
    WHERE s.marked_at = @at
    ORDER BY s.tenant_object_id, s.capacity_id, s.kind
    OPTION (MAXDOP 1);
    SET @deleted = @@ROWCOUNT;

    DELETE s
    FROM @old AS o
    INNER JOIN dbo.usage_mark_sums AS s
        ON
            s.marked_at = @at AND o.tenant_object_id = s.tenant_object_id AND o.capacity_id = s.capacity_id
            AND o.kind = s.kind
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    IF @deleted < @limit
        DELETE FROM dbo.usage_marks
        WHERE marked_at = @at;

    COMMIT TRANSACTION;

    SELECT @deleted AS deleted;
END;
