-- Adds a key that signs session tokens. The earlier keys expire after `overlap` microseconds, unless they expire
-- earlier; without `overlap`, they are deleted. Keys that have already expired are deleted in both cases. If `overlap`
-- is set and at least `most` keys have not expired, the procedure returns `too-many` and changes nothing. If a key with
-- the id `keyId` exists, an earlier call has added it, and the procedure changes nothing and returns `rotated`.
--
-- The version of the API keys stays the same: from version 1 on, callers need a credential, so a rotation that
-- increased the version would lock everyone out of an installation that has no API key. Instances read the signing keys
-- together with the version.
--
-- Order: lock the row of the installation, look for the key, read the clock, write.
--
-- @request: {"keyId", "secret", "overlap", "most", "detail", "actor": {"entry", "subject", "name", "request"}}, without
-- the values that are not set.
CREATE OR ALTER PROCEDURE dbo.tenure_rotate_signing_key_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @key_id varchar(200) = JSON_VALUE(@request, '$.keyId'),
        @overlap bigint = JSON_VALUE(@request, '$.overlap'),
        @most int = JSON_VALUE(@request, '$.most'),
        @detail nvarchar(1000) = JSON_VALUE(@request, '$.detail'),
        @actor nvarchar(MAX) = JSON_QUERY(@request, '$.actor'),
        @outcome varchar(16) = 'rotated',
        @version bigint,
        @known int,
        @valid int,
        @expires datetime2(6),
        @now datetime2(6);

    BEGIN TRANSACTION;

    -- Under this lock, only one transaction at a time changes keys.
    SELECT @version = i.keys_version
    FROM dbo.installation AS i WITH (UPDLOCK, HOLDLOCK, ROWLOCK)
    WHERE i.only_row = 1;

    SELECT @known = COUNT(*)
    FROM dbo.signing_keys AS s WITH (READCOMMITTEDLOCK, INDEX (signing_keys_pkey))
    WHERE s.key_id = @key_id;

    SET @now = dbo.tenure_now();

    SELECT @valid = COUNT(*)
    FROM dbo.signing_keys AS s WITH (READCOMMITTEDLOCK, INDEX (signing_keys_pkey))
    WHERE s.expires_at IS NULL OR s.expires_at > @now;

    IF @known = 0 AND @overlap IS NOT NULL AND @valid >= @most
        SET @outcome = 'too-many';

    IF @known = 0 AND @outcome = 'rotated'
    BEGIN
        SET @expires = dbo.tenure_add_microseconds_1(@now, @overlap);

        DELETE FROM dbo.signing_keys
        WHERE @overlap IS NULL OR expires_at <= @now;

        UPDATE dbo.signing_keys
        SET expires_at = @expires
        WHERE expires_at IS NULL OR expires_at > @expires;

        INSERT INTO dbo.signing_keys (key_id, secret, created_at)
        VALUES (@key_id, CONVERT(varbinary(32), JSON_VALUE(@request, '$.secret'), 2), @now);

        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @actor, @action = 'signing-key.rotated', @target = @key_id, @detail = @detail,
            @changes = 1;
    END;

    COMMIT TRANSACTION;

    SELECT @outcome AS outcome;
END;
