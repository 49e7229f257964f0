-- Deletes one batch of old usage, under the fence of job `prune`. First the procedure deletes the oldest windows with
-- their chunks, and stops before the first window that must be kept. A window may be deleted if it is divided into
-- chunks, ended more than @kept microseconds ago, and is delivered or has no contract (it was cut without a gateway).
-- Then the procedure deletes the sessions that closed before the start of the first window that is kept. So every
-- window that exists can be rendered. Returns the number of rows deleted from each table.
--
-- A transaction that read the clock before a window passed its retention time may still be sending this window. Such a
-- transaction holds the row of the window. So the procedure first reads the windows without keeping locks, and then
-- locks those that may be deleted. It stops before a window that another transaction holds, or has sent since the first
-- read. Chunks and sessions that another transaction holds are skipped. All deleted sessions ended before the last cut,
-- so the cut lock is not needed.
--
-- The transaction reads the last cut first. A window that is cut later begins at that cut or after it, so no session
-- that the window needs is deleted, even if this transaction does not see the window. The transaction writes the row of
-- the installation last, because all session writes read that row and wait while it is locked.
CREATE OR ALTER PROCEDURE dbo.tenure_prune_usage_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @limit int,
    @kept bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @before datetime2(6),
        @last_cut_at datetime2(6),
        @kept_from datetime2(6),
        @end bigint,
        @pruned_chunks int,
        @pruned_windows int,
        @pruned_sessions int;
    DECLARE @oldest TABLE (
        window_id bigint NOT NULL PRIMARY KEY,
        is_over bit NOT NULL
    );
    DECLARE @taken TABLE (
        window_id bigint NOT NULL PRIMARY KEY
    );
    DECLARE @old_chunks TABLE (
        window_id bigint NOT NULL,
        chunk int NOT NULL,
        PRIMARY KEY (window_id, chunk)
    );
    DECLARE @old_windows TABLE (
        window_id bigint NOT NULL PRIMARY KEY
    );
    DECLARE @old_sessions TABLE (
        session_id uniqueidentifier NOT NULL PRIMARY KEY
    );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    SET @before = dbo.tenure_add_microseconds_1(dbo.tenure_now(), -@kept);

    SELECT @last_cut_at = i.last_cut_at, @kept_from = i.usage_kept_from
    FROM dbo.installation AS i;

    INSERT INTO @oldest (window_id, is_over)
    SELECT TOP (@limit)
        w.window_id,
        CASE
            WHEN
                w.ended_at < @before AND w.chunked_at IS NOT NULL
                AND (w.delivered_at IS NOT NULL OR w.contract IS NULL)
                THEN 1
            ELSE 0
        END
    FROM dbo.usage_windows AS w WITH (READCOMMITTEDLOCK, INDEX (usage_windows_pkey))
    ORDER BY w.window_id
    OPTION (MAXDOP 1);

    -- @end is the id of the first window that must be kept. If all windows that were read may be deleted, @end is the
    -- id after the last of them.
    SET @end = COALESCE(
        (SELECT MIN(o.window_id) FROM @oldest AS o WHERE o.is_over = 0),
        (SELECT MAX(o.window_id) + 1 FROM @oldest AS o),
        0
    );

    INSERT INTO @taken (window_id)
    SELECT TOP (@limit) w.window_id
    FROM dbo.usage_windows AS w WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (usage_windows_pkey))
    WHERE w.window_id < @end AND (w.delivered_at IS NOT NULL OR w.contract IS NULL)
    ORDER BY w.window_id
    OPTION (MAXDOP 1);

    -- Stop at the first window that was not locked.
    SELECT @end = COALESCE(MIN(o.window_id), @end)
    FROM @oldest AS o
    WHERE o.window_id < @end AND NOT EXISTS (SELECT 1 FROM @taken AS t WHERE t.window_id = o.window_id);

    INSERT INTO @old_chunks (window_id, chunk)
    SELECT TOP (@limit) c.window_id, c.chunk
    FROM dbo.usage_chunks AS c WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (usage_chunks_pkey))
    WHERE c.window_id < @end
    ORDER BY c.window_id, c.chunk
    OPTION (MAXDOP 1);

    DELETE c
    FROM @old_chunks AS o
    INNER JOIN dbo.usage_chunks AS c ON o.window_id = c.window_id AND o.chunk = c.chunk
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_chunks = @@ROWCOUNT;

    -- Stop at the first window that still has chunks.
    SELECT @end = COALESCE(MIN(c.window_id), @end)
    FROM dbo.usage_chunks AS c WITH (READCOMMITTEDLOCK, INDEX (usage_chunks_pkey))
    WHERE c.window_id < @end;

    INSERT INTO @old_windows (window_id)
    SELECT TOP (@limit) w.window_id
    FROM dbo.usage_windows AS w WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (usage_windows_pkey))
    WHERE w.window_id < @end
    ORDER BY w.window_id
    OPTION (MAXDOP 1);

    DELETE w
    FROM @old_windows AS o
    INNER JOIN dbo.usage_windows AS w ON o.window_id = w.window_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_windows = @@ROWCOUNT;

    IF @pruned_windows > 0
    BEGIN
        SET @kept_from = @last_cut_at;
        SELECT TOP (1) @kept_from = w.started_at
        FROM dbo.usage_windows AS w WITH (READCOMMITTEDLOCK, INDEX (usage_windows_pkey))
        ORDER BY w.window_id
        OPTION (MAXDOP 1);
    END;

    INSERT INTO @old_sessions (session_id)
    SELECT TOP (@limit) s.session_id
    FROM dbo.sessions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, FORCESEEK, INDEX (sessions_closed_at))
    WHERE s.closed_at < @kept_from AND s.closed_at IS NOT NULL AND s.state = 'closed'
    ORDER BY s.closed_at
    OPTION (MAXDOP 1);

    DELETE s
    FROM @old_sessions AS o
    INNER JOIN dbo.sessions AS s ON o.session_id = s.session_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_sessions = @@ROWCOUNT;

    IF @pruned_windows > 0
        UPDATE dbo.installation
        SET usage_kept_from = @kept_from
        WHERE only_row = 1;

    COMMIT TRANSACTION;

    SELECT @pruned_chunks AS chunks, @pruned_windows AS windows, @pruned_sessions AS sessions;
END;
