-- Moves the horizon of events to now, and returns it. Every session write holds the cut lock (shared) until it commits.
-- So under the exclusive lock, all session writes with a timestamp up to the horizon are committed. Later session
-- writes get a later timestamp, because tenure_write_now() returns an instant after the horizon. For the same reason, a
-- session whose deadline is at or before the horizon can no longer be renewed.
--
-- If the horizon was moved within the last @pause microseconds, the procedure only returns it, because all session
-- writes wait while a transaction has the exclusive lock. The procedure waits for this lock for 200 ms at most, and
-- then raises an error; the caller retries later.
--
-- If the clock is behind the last cut or the horizon, it was stepped back, and earlier writes may have timestamps later
-- than now. The horizon then moves at least to the newest of these timestamps. Otherwise the events of these writes
-- would stay after the horizon until the clock reaches their timestamps.
--
-- Order: read the clock and the horizon without keeping a lock, acquire the cut lock exclusively, read both again,
-- write.
CREATE OR ALTER PROCEDURE dbo.tenure_publish_events_1 @pause bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @now datetime2(6) = dbo.tenure_now(),
        @horizon datetime2(6),
        @newest datetime2(6),
        @is_recent bit = 0;

    SELECT @horizon = i.published_at
    FROM dbo.installation AS i WITH (READCOMMITTEDLOCK);

    IF @now >= @horizon AND @now < dbo.tenure_add_microseconds_1(@horizon, @pause)
        SET @is_recent = 1;

    IF @is_recent = 0
    BEGIN
        BEGIN TRANSACTION;
        EXEC dbo.tenure_lock_cut_exclusive_1;

        -- Another instance may have moved the horizon while this one waited.
        SET @now = dbo.tenure_now();
        SELECT @horizon = i.published_at
        FROM dbo.installation AS i WITH (READCOMMITTEDLOCK);

        IF @now >= @horizon AND @now < dbo.tenure_add_microseconds_1(@horizon, @pause)
            SET @is_recent = 1;

        IF @is_recent = 0
        BEGIN
            SET @horizon = dbo.tenure_write_now();

            IF @horizon > dbo.tenure_now()
            BEGIN
                SELECT @newest = MAX(n.at)
                FROM (
                    SELECT MAX(c.closed_at) AS at
                    FROM dbo.sessions AS c WITH (READCOMMITTEDLOCK, INDEX (sessions_closed_at))
                    WHERE c.closed_at IS NOT NULL
                    UNION ALL
                    SELECT MAX(o.started_at) AS at
                    FROM dbo.sessions AS o WITH (READCOMMITTEDLOCK, INDEX (sessions_live_kind))
                    WHERE o.close_reason IS NULL AND o.kind = 1
                    UNION ALL
                    SELECT MAX(o.started_at) AS at
                    FROM dbo.sessions AS o WITH (READCOMMITTEDLOCK, INDEX (sessions_live_kind))
                    WHERE o.close_reason IS NULL AND o.kind = 2
                    UNION ALL
                    SELECT MAX(o.started_at) AS at
                    FROM dbo.sessions AS o WITH (READCOMMITTEDLOCK, INDEX (sessions_live_kind))
                    WHERE o.close_reason IS NULL AND o.kind = 3
                ) AS n;
                IF @newest > @horizon
                    SET @horizon = @newest;
            END;

            UPDATE dbo.installation
            SET stamped_after = @horizon, published_at = @horizon
            WHERE only_row = 1;
        END;
        COMMIT TRANSACTION;
    END;

    SELECT @horizon AS horizon;
END;
