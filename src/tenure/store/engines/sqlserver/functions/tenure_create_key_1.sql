-- Creates an API key and returns it. Returns no row if the name already has `liveMax` live keys. If a key with this
-- public id exists, an earlier call has created it: the procedure returns it and changes nothing. In a rotation, the
-- other live keys with this name expire at `othersExpire`, unless they expire earlier.
--
-- Order: lock the row of the installation, look for the key, read the clock, write. A transaction that holds the row of
-- the installation waits only for tenure_touch_keys_1, which itself waits for no transaction.
--
-- @request: {"publicId", "name", "role", "tenant", "digest", "expires", "othersExpire", "liveMax", "detail",
-- "actor": {"entry", "subject", "name", "request"}}, without the values that are not set.
CREATE OR ALTER PROCEDURE dbo.tenure_create_key_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @public_id varchar(200) = JSON_VALUE(@request, '$.publicId'),
        @name varchar(200) = JSON_VALUE(@request, '$.name'),
        @others_expire datetime2(6) = JSON_VALUE(@request, '$.othersExpire'),
        @live_max int = JSON_VALUE(@request, '$.liveMax'),
        @detail nvarchar(1000) = JSON_VALUE(@request, '$.detail'),
        @actor nvarchar(MAX) = JSON_QUERY(@request, '$.actor'),
        @version bigint,
        @known int,
        @now datetime2(6);
    DECLARE @live TABLE (
        public_id varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY
    );
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

    -- This lock lets only one transaction at a time create, revoke or rotate keys.
    SELECT @version = i.keys_version
    FROM dbo.installation AS i WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
    WHERE i.only_row = 1;

    SELECT @known = COUNT(*)
    FROM dbo.keys AS k WITH (READCOMMITTEDLOCK, INDEX (keys_pkey))
    WHERE k.public_id = @public_id;

    SET @now = dbo.tenure_now();

    INSERT INTO @live (public_id)
    SELECT k.public_id
    FROM dbo.keys AS k WITH (READCOMMITTEDLOCK, INDEX (keys_name))
    WHERE k.name = @name AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > @now);

    IF @known = 0 AND (SELECT COUNT(*) FROM @live) < @live_max
    BEGIN
        UPDATE k
        SET k.expires_at = @others_expire
        FROM @live AS o
        INNER JOIN dbo.keys AS k ON o.public_id = k.public_id
        WHERE k.expires_at > @others_expire OR (k.expires_at IS NULL AND @others_expire IS NOT NULL)
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

        INSERT INTO dbo.keys (
            public_id, name, role, tenant_object_id, digest, created_at, created_by, expires_at
        )
        VALUES (
            @public_id, @name, JSON_VALUE(@request, '$.role'), JSON_VALUE(@request, '$.tenant'),
            CONVERT(varbinary(32), JSON_VALUE(@request, '$.digest'), 2), @now, JSON_VALUE(@actor, '$.subject'),
            JSON_VALUE(@request, '$.expires')
        );

        UPDATE dbo.installation
        SET keys_version = @version + 1
        WHERE only_row = 1;

        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @actor, @action = 'key.created', @target = @public_id, @detail = @detail,
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
