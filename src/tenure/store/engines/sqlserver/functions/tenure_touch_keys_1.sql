-- Records the last use of API keys. A last use never becomes earlier. Instances only estimate the time of a use, so a
-- time later than now is stored as now. The version of the keys stays the same, because instances do not cache the last
-- use. The procedure skips keys that other transactions hold, so that it never waits while it holds a key. A skipped
-- use is not recorded later; a later call records the next use of the key.
--
-- @request: [[position, publicId, usedAt], …]
CREATE OR ALTER PROCEDURE dbo.tenure_touch_keys_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @now datetime2(6),
        @touched int;
    DECLARE @used TABLE (
        public_id varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        used_at datetime2(6) NOT NULL
    );
    DECLARE @free TABLE (
        public_id varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        used_at datetime2(6) NOT NULL
    );

    INSERT INTO @used (public_id, used_at)
    SELECT j.public_id, j.used_at
    FROM OPENJSON(@request) WITH (public_id varchar(200) '$[1]', used_at datetime2(6) '$[2]') AS j;

    BEGIN TRANSACTION;

    INSERT INTO @free (public_id, used_at)
    SELECT TOP (1000) k.public_id, u.used_at
    FROM @used AS u
    INNER JOIN dbo.keys AS k WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (keys_pkey))
        ON u.public_id = k.public_id
    ORDER BY u.public_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_now();

    UPDATE f
    SET f.used_at = @now
    FROM @free AS f
    WHERE f.used_at > @now;

    UPDATE k
    SET k.last_used_at = f.used_at
    FROM @free AS f
    INNER JOIN dbo.keys AS k ON f.public_id = k.public_id
    WHERE k.last_used_at IS NULL OR k.last_used_at < f.used_at
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @touched = @@ROWCOUNT;

    COMMIT TRANSACTION;

    SELECT @touched AS touched;
END;
