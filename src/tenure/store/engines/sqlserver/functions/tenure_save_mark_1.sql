-- Saves rows of a mark of usage and the state of the mark, under the fence of the job that writes marks. Rows that
-- exist are not changed: the values of a mark are final, so a repeated call contains the same values. A mark in state
-- `complete` or `skipped` is not changed either. Returns the number of new rows.
--
-- Order: check the fence (which locks the lease), lock the mark, write. Only the holder of the lease writes marks, so
-- after the check of the fence, this transaction waits for no other write.
--
-- @request: {"at", "series", "state", "sums": [[tenant, capacity, kind, usage, started, live], …]}
CREATE OR ALTER PROCEDURE dbo.tenure_save_mark_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @at datetime2(6) = JSON_VALUE(@request, '$.at'),
        @series int = JSON_VALUE(@request, '$.series'),
        @new_state varchar(16) = JSON_VALUE(@request, '$.state'),
        @state varchar(16),
        @saved int = 0;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    SELECT @state = m.state
    FROM dbo.usage_marks AS m WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (usage_marks_pkey))
    WHERE m.marked_at = @at;

    IF @state IS NULL
        INSERT INTO dbo.usage_marks (marked_at, series, state)
        VALUES (@at, @series, 'incomplete');

    IF @state IS NULL OR @state = 'incomplete'
    BEGIN
        INSERT INTO dbo.usage_mark_sums (
            marked_at, tenant_object_id, capacity_id, kind, usage_millionths, started, live
        )
        SELECT @at, j.tenant_object_id, j.capacity_id, j.kind, j.usage_millionths, j.started, j.live
        FROM OPENJSON(@request, '$.sums') WITH (
            tenant_object_id uniqueidentifier '$[0]',
            capacity_id uniqueidentifier '$[1]',
            kind smallint '$[2]',
            usage_millionths bigint '$[3]',
            started bigint '$[4]',
            live int '$[5]'
        ) AS j
        WHERE NOT EXISTS (
            SELECT 1
            FROM dbo.usage_mark_sums AS s WITH (READCOMMITTEDLOCK, INDEX (usage_mark_sums_pkey))
            WHERE
                s.marked_at = @at AND s.tenant_object_id = j.tenant_object_id AND s.capacity_id = j.capacity_id
                AND s.kind = j.kind
        )
        OPTION (MAXDOP 1);
        SET @saved = @@ROWCOUNT;

        UPDATE dbo.usage_marks
        SET series = @series, state = @new_state
        WHERE marked_at = @at;
    END;

    COMMIT TRANSACTION;

    SELECT @saved AS saved;
END;
