-- Stores the digest of each rendered chunk before the chunk's first attempt, under the fence of the executor. A digest
-- that is stored already does not change. In the result, `same` is 1 if the stored digest equals the given one. If
-- `same` is 0, an earlier rendering of the chunk had other bytes, and the chunk must not be sent.
--
-- Order: check the fence (which locks the lease), lock the chunks in the order of their submissions, write.
--
-- @request: [[position, submission, digest in hexadecimal digits], …]
CREATE OR ALTER PROCEDURE dbo.tenure_store_digests_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @given TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        digest varbinary(32) NOT NULL
    );
    DECLARE @mine TABLE (
        window_id bigint NOT NULL,
        chunk int NOT NULL,
        submission_id uniqueidentifier NOT NULL,
        digest varbinary(32),
        new_digest varbinary(32) NOT NULL,
        PRIMARY KEY (window_id, chunk)
    );

    INSERT INTO @given (submission_id, digest)
    SELECT j.submission_id, CONVERT(varbinary(32), j.digest, 2)
    FROM OPENJSON(@request) WITH (submission_id uniqueidentifier '$[1]', digest varchar(64) '$[2]') AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    -- Lock the rows, in the order of their submissions. Without TOP the ORDER BY would be ignored.
    INSERT INTO @mine (window_id, chunk, submission_id, digest, new_digest)
    SELECT TOP (1000) c.window_id, c.chunk, d.submission_id, c.digest, d.digest
    FROM @given AS d
    INNER JOIN dbo.usage_chunks AS c WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (usage_chunks_submission))
        ON d.submission_id = c.submission_id AND c.submission_id IS NOT NULL
    ORDER BY d.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE c
    SET c.digest = m.new_digest
    FROM @mine AS m
    INNER JOIN dbo.usage_chunks AS c ON m.window_id = c.window_id AND m.chunk = c.chunk
    WHERE m.digest IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT
        m.submission_id,
        CAST(CASE WHEN m.digest IS NULL OR m.digest = m.new_digest THEN 1 ELSE 0 END AS bit) AS same
    FROM @mine AS m;
END;
