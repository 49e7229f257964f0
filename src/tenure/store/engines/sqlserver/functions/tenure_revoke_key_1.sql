-- Revokes an API key and returns it; returns no row if the key does not exist. A key that is revoked already does not
-- change.
--
-- Order: lock the row of the installation, read the clock, write.
--
-- @request: {"publicId", "actor": {"entry", "subject", "name", "request"}}
CREATE OR ALTER PROCEDURE dbo.tenure_revoke_key_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @public_id varchar(200) = JSON_VALUE(@request, '$.publicId'),
        @actor nvarchar(MAX) = JSON_QUERY(@request, '$.actor'),
        @version bigint,
        @revoked int,
        @now datetime2(6);
    DECLARE @key TABLE (
        public_id varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        name varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        role varchar(16) NOT NULL,
        tenant_object_id uniqueidentifier,
        digest varbinary(32) NOT NULL,
        created_at datetime2(6) NOT NULL,
        created_by varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        expires_at datetime2(6),
        last_used_at datetime2(6),
        revoked_at datetime2(6)
    );

    BEGIN TRANSACTION;

    -- Every transaction that creates or revokes a key takes this lock, so only one at a time does so.
    SELECT @version = i.keys_version
    FROM dbo.installation AS i WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
    WHERE i.only_row = 1;

    SET @now = dbo.tenure_now();

    UPDATE dbo.keys
    SET revoked_at = @now
    WHERE public_id = @public_id AND revoked_at IS NULL;
    SET @revoked = @@ROWCOUNT;

    IF @revoked > 0
    BEGIN
        UPDATE dbo.installation
        SET keys_version = @version + 1
        WHERE only_row = 1;

        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @actor, @action = 'key.revoked', @target = @public_id, @detail = NULL,
            @changes = 1;
    END;

    INSERT INTO @key (
        public_id, name, role, tenant_object_id, digest, created_at, created_by, expires_at, last_used_at, revoked_at
    )
    SELECT
        k.public_id, k.name, k.role, k.tenant_object_id, k.digest, k.created_at, k.created_by, k.expires_at,
        k.last_used_at, k.revoked_at
    FROM dbo.keys AS k WITH (READCOMMITTEDLOCK, INDEX (keys_pkey))
    WHERE k.public_id = @public_id;

    COMMIT TRANSACTION;

    SELECT
        k.public_id, k.name, k.role, k.tenant_object_id, k.digest, k.created_at, k.created_by, k.expires_at,
        k.last_used_at, k.revoked_at
    FROM @key AS k;
END;
