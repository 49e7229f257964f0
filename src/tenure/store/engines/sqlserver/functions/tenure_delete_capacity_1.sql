-- Deletes the rules of a capacity. Returns the deleted row, or no row if the procedure deleted nothing. Like
-- tenure_put_capacity_1, which sets the rules, this procedure holds the exclusive cut lock. So no transaction is
-- opening sessions under the old rules.
--
-- @scope is the tenant that the caller is bound to, or NULL. If @scope is not NULL, the procedure deletes the rules
-- only if they bind the capacity to the same tenant.
--
-- @request: {"capacity", "scope", "actor": {"entry", "subject", "name", "request"}}. Values that are not set are left
-- out.
CREATE OR ALTER PROCEDURE dbo.tenure_delete_capacity_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @capacity_id uniqueidentifier = JSON_VALUE(@request, '$.capacity'),
        @scope uniqueidentifier = JSON_VALUE(@request, '$.scope'),
        @actor nvarchar(MAX) = JSON_QUERY(@request, '$.actor'),
        @id varchar(36),
        @detail nvarchar(1000),
        @now datetime2(6);
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
    WHERE c.capacity_id = @capacity_id AND (@scope IS NULL OR c.tenant_object_id = @scope);

    SET @now = dbo.tenure_now();
    SELECT
        @id = LOWER(CONVERT(varchar(36), w.capacity_id)),
        @detail = dbo.tenure_rules_text_1(w.max_sessions, w.when_full, w.tenant_object_id)
    FROM @was AS w;

    IF @id IS NOT NULL
    BEGIN
        DELETE FROM dbo.capacities WHERE capacity_id = @capacity_id;
        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @actor, @action = 'capacity.deleted', @target = @id, @detail = @detail, @changes = 1;
    END;
    COMMIT TRANSACTION;

    SELECT w.capacity_id, w.tenant_object_id, w.created_at, w.modified_at, w.max_sessions, w.when_full
    FROM @was AS w;
END;
