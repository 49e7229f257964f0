-- Sends windows that were cut without a gateway: gives each window the contract, and inserts a submission for each of
-- its chunks. Returns the ids of the windows that it sends. The procedure skips a window that already has a contract,
-- is not divided yet, is past its retention time (its chunks may be partly deleted) or does not have the given number
-- of chunks. So a repeated call, or a concurrent one, sends no window twice. If the procedure sends windows, it writes
-- the audit entry of "draft" with their number; if an earlier call has written this entry, it adds their number to it.
--
-- Order: lock the windows in the order of their ids, read the clock, write. While this transaction holds the lock of a
-- divided window without a contract, no other transaction changes the window or its chunks. This transaction holds the
-- windows while it waits for transactions that accept submissions with neighbouring keys. No transaction that holds a
-- submission waits for a window, so this wait cannot cause a deadlock.
--
-- @request: {"contract", "kept": microseconds, "windows": [[window, number of chunks], …],
--            "chunks": [[window, chunk, submission], …],
--            "draft": {"entry", "subject", "name", "request", "action", "target", "detail"}}
CREATE OR ALTER PROCEDURE dbo.tenure_send_windows_1 @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @contract nvarchar(MAX) = JSON_QUERY(@request, '$.contract'),
        @kept bigint = JSON_VALUE(@request, '$.kept'),
        @draft nvarchar(MAX) = JSON_QUERY(@request, '$.draft'),
        @action varchar(32) = JSON_VALUE(@request, '$.draft.action'),
        @target varchar(200) = JSON_VALUE(@request, '$.draft.target'),
        @detail nvarchar(1000) = JSON_VALUE(@request, '$.draft.detail'),
        @sent int,
        @now datetime2(6),
        @kept_from datetime2(6);
    DECLARE @given TABLE (
        window_id bigint NOT NULL PRIMARY KEY,
        chunks int NOT NULL
    );
    DECLARE @given_chunks TABLE (
        window_id bigint NOT NULL,
        chunk int NOT NULL,
        submission_id uniqueidentifier NOT NULL,
        PRIMARY KEY (window_id, chunk)
    );
    DECLARE @locked TABLE (
        window_id bigint NOT NULL PRIMARY KEY,
        installation varchar(36) NOT NULL,
        ended_at datetime2(6) NOT NULL,
        is_unsent bit NOT NULL,
        chunks int NOT NULL
    );
    DECLARE @sending TABLE (
        window_id bigint NOT NULL PRIMARY KEY,
        installation varchar(36) NOT NULL,
        chunks int NOT NULL
    );

    INSERT INTO @given (window_id, chunks)
    SELECT j.window_id, j.chunks
    FROM OPENJSON(@request, '$.windows') WITH (window_id bigint '$[0]', chunks int '$[1]') AS j;

    INSERT INTO @given_chunks (window_id, chunk, submission_id)
    SELECT j.window_id, j.chunk, j.submission_id
    FROM OPENJSON(@request, '$.chunks') WITH (
        window_id bigint '$[0]', chunk int '$[1]', submission_id uniqueidentifier '$[2]'
    ) AS j;

    BEGIN TRANSACTION;

    -- Lock the rows, in the order of their ids. Without TOP the ORDER BY would be ignored.
    -- LOWER, because SQL Server formats a uniqueidentifier in upper case, and Tenure uses lower case.
    INSERT INTO @locked (window_id, installation, ended_at, is_unsent, chunks)
    SELECT TOP (1000)
        w.window_id,
        LOWER(CONVERT(varchar(36), w.installation_id)),
        w.ended_at,
        CASE WHEN w.contract IS NULL AND w.chunked_at IS NOT NULL THEN 1 ELSE 0 END,
        g.chunks
    FROM @given AS g
    INNER JOIN dbo.usage_windows AS w WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (usage_windows_pkey))
        ON g.window_id = w.window_id
    ORDER BY g.window_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_now();
    SET @kept_from = dbo.tenure_add_microseconds_1(@now, -@kept);

    INSERT INTO @sending (window_id, installation, chunks)
    SELECT k.window_id, k.installation, k.chunks
    FROM @locked AS k
    WHERE
        k.is_unsent = 1
        AND k.ended_at >= @kept_from
        AND k.chunks = (
            SELECT COUNT(*)
            FROM dbo.usage_chunks AS c WITH (READCOMMITTEDLOCK, INDEX (usage_chunks_pkey))
            WHERE c.window_id = k.window_id
        );

    UPDATE c
    SET c.submission_id = g.submission_id
    FROM @sending AS s
    INNER JOIN @given_chunks AS g ON s.window_id = g.window_id
    INNER JOIN dbo.usage_chunks AS c ON g.window_id = c.window_id AND g.chunk = c.chunk
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    INSERT INTO dbo.submissions (
        submission_id, gateway, caller, idempotency_key, delivery_key, digest, contract, state, attempts,
        failures, next_attempt_at, created_at, last_modified_at
    )
    SELECT
        g.submission_id, 'usages', 'tenure', CONVERT(varbinary(255), k.delivery_key), k.delivery_key, 0x,
        @contract, 'pending', 0,
        0, @now, @now, @now
    FROM @sending AS s
    INNER JOIN @given_chunks AS g ON s.window_id = g.window_id
    CROSS APPLY (
        SELECT CAST(CONCAT(s.installation, '-', s.window_id, '-', g.chunk) AS varchar(200)) AS delivery_key
    ) AS k;

    UPDATE w
    SET
        w.contract = @contract,
        w.delivered_at = CASE WHEN s.chunks = 0 THEN @now END
    FROM @sending AS s
    INNER JOIN dbo.usage_windows AS w ON s.window_id = w.window_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SELECT @sent = COUNT(*) FROM @sending;
    IF @sent > 0
        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @draft, @action = @action, @target = @target, @detail = @detail, @changes = @sent;

    COMMIT TRANSACTION;

    SELECT s.window_id FROM @sending AS s;
END;
