-- Saves chunks of a window, numbered from @first on, under the fence of the job that divides the window. If the window
-- has a contract, it also inserts a submission for each chunk. With the last chunks (@complete) it stores the sums of
-- the window. Chunks that were saved by an earlier call whose answer was lost are not changed. A gap in the numbers, or
-- an unknown window, is a mistake of the caller and raises an error.
--
-- Order: check the fence (which locks the lease), lock the window, read the clock, write. A transaction that saves or
-- delivers chunks holds the row of their window. This transaction holds the row while it waits for transactions that
-- accept submissions with neighbouring keys. No transaction that holds a submission waits for a window, so this wait
-- cannot cause a deadlock.
--
-- @request: [[position, first session, last session, sessions, usage, submission], …]. Positions begin with 0; usage is
-- in millionths.
CREATE OR ALTER PROCEDURE dbo.tenure_save_chunks_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @window_id bigint,
    @first int,
    @complete bit,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @now datetime2(6),
        @installation varchar(36),
        @is_there bit = 0,
        @chunked_at datetime2(6),
        @contract nvarchar(MAX),
        @saved int,
        @sessions int,
        @usage bigint,
        @undelivered int,
        @wrong nvarchar(2048);
    DECLARE @saving TABLE (
        chunk int NOT NULL PRIMARY KEY,
        first_session_id uniqueidentifier NOT NULL,
        last_session_id uniqueidentifier NOT NULL,
        sessions int NOT NULL,
        usage_millionths bigint NOT NULL,
        submission_id uniqueidentifier NOT NULL
    );

    INSERT INTO @saving (chunk, first_session_id, last_session_id, sessions, usage_millionths, submission_id)
    SELECT
        @first + j.position, j.first_session_id, j.last_session_id, j.sessions, j.usage_millionths, j.submission_id
    FROM OPENJSON(@request) WITH (
        position int '$[0]',
        first_session_id uniqueidentifier '$[1]',
        last_session_id uniqueidentifier '$[2]',
        sessions int '$[3]',
        usage_millionths bigint '$[4]',
        submission_id uniqueidentifier '$[5]'
    ) AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    -- LOWER, because SQL Server formats a uniqueidentifier in upper case, and Tenure uses lower case.
    SELECT
        @is_there = 1,
        @installation = LOWER(CONVERT(varchar(36), w.installation_id)),
        @chunked_at = w.chunked_at,
        @contract = w.contract
    FROM dbo.usage_windows AS w WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (usage_windows_pkey))
    WHERE w.window_id = @window_id;

    SELECT @saved = COALESCE(MAX(c.chunk), 0)
    FROM dbo.usage_chunks AS c WITH (READCOMMITTEDLOCK, INDEX (usage_chunks_pkey))
    WHERE c.window_id = @window_id;

    SET @now = dbo.tenure_now();

    IF @is_there = 0 OR (@chunked_at IS NULL AND @first > @saved + 1)
    BEGIN
        SET @wrong = CONCAT(N'tenure: chunk ', @first, N' of window ', @window_id, N' would follow chunk ', @saved);
        THROW 51002, @wrong, 1;
    END;

    IF @chunked_at IS NULL AND @first = @saved + 1
    BEGIN
        INSERT INTO dbo.usage_chunks (
            window_id, chunk, first_session_id, last_session_id, sessions, usage_millionths, submission_id
        )
        SELECT
            @window_id, p.chunk, p.first_session_id, p.last_session_id, p.sessions, p.usage_millionths,
            CASE WHEN @contract IS NOT NULL THEN p.submission_id END
        FROM @saving AS p;

        IF @contract IS NOT NULL
            INSERT INTO dbo.submissions (
                submission_id, gateway, caller, idempotency_key, delivery_key, digest, contract, state, attempts,
                failures, next_attempt_at, created_at, last_modified_at
            )
            SELECT
                p.submission_id, 'usages', 'tenure', CONVERT(varbinary(255), k.delivery_key), k.delivery_key, 0x,
                @contract, 'pending', 0,
                0, @now, @now, @now
            FROM @saving AS p
            CROSS APPLY (
                SELECT CAST(CONCAT(@installation, '-', @window_id, '-', p.chunk) AS varchar(200)) AS delivery_key
            ) AS k;
    END;

    IF @chunked_at IS NULL AND @complete = 1
    BEGIN
        SELECT
            @sessions = COALESCE(SUM(c.sessions), 0),
            @usage = COALESCE(SUM(c.usage_millionths), 0),
            @undelivered = COALESCE(SUM(CASE WHEN c.delivered_at IS NULL THEN 1 ELSE 0 END), 0)
        FROM dbo.usage_chunks AS c WITH (READCOMMITTEDLOCK, INDEX (usage_chunks_pkey))
        WHERE c.window_id = @window_id;

        UPDATE dbo.usage_windows
        SET
            chunked_at = @now,
            sessions = @sessions,
            usage_millionths = @usage,
            delivered_at = CASE WHEN @contract IS NOT NULL AND @undelivered = 0 THEN @now END
        WHERE window_id = @window_id;
    END;

    COMMIT TRANSACTION;

    SELECT @saved AS saved;
END;
