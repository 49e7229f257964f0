-- Deletes the rules of a capacity under the exclusive cut lock, like tenure_put_capacity_1, which sets them. Returns
-- the deleted row, or no row if there were no rules.
CREATE OR ALTER PROCEDURE dbo.tenure_delete_capacity_1 @capacity_id uniqueidentifier
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
    EXEC dbo.tenure_lock_cut_exclusive_1;

    INSERT INTO @was (capacity_id, tenant_object_id, created_at, modified_at, max_sessions, when_full)
    SELECT c.capacity_id, c.tenant_object_id, c.created_at, c.modified_at, c.max_sessions, c.when_full
    FROM dbo.capacities AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (capacities_pkey))
    WHERE c.capacity_id = @capacity_id;

    DELETE FROM dbo.capacities WHERE capacity_id = @capacity_id;
    COMMIT TRANSACTION;

    SELECT w.capacity_id, w.tenant_object_id, w.created_at, w.modified_at, w.max_sessions, w.when_full
    FROM @was AS w;
END;
