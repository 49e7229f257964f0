-- What a session that lived for so many microseconds has used, in millionths, rounded half even. `meter.py` says the same in
-- one line; here no step may pass 64 bits, so whole periods of 30 days and whole factors are taken out first. The period is a
-- variable: as a number in the text it would not be a bigint but a decimal, and what is divided by it would have decimals.
--
-- It reads nothing and returns once, so that the server can put it in the place of the call.
CREATE FUNCTION dbo.tenure_usage_1(@microseconds bigint, @factor bigint) RETURNS bigint
WITH SCHEMABINDING
AS
BEGIN
    DECLARE @period bigint = 2592000000000;
    DECLARE @rest bigint = @microseconds % @period;
    DECLARE @scaled bigint = @factor / 1000000 * @rest;
    DECLARE @small bigint = @scaled % 2592000 * 1000000 + @factor % 1000000 * @rest;
    DECLARE @whole bigint = @factor * (@microseconds / @period) + @scaled / 2592000 + @small / @period;
    -- Twice the rest, and one more if what is rounded is odd: only then is a half rounded up.
    RETURN @whole + CASE WHEN 2 * (@small % @period) + @whole % 2 > @period THEN 1 ELSE 0 END;
END;

-- statement-break

-- Cuts windows up to the last instant of the grid. Every session write holds the cut lock shared until it has committed, so
-- alone under it nothing is under way: what was stamped before the cut is there, and what comes later is stamped after it,
-- since tenure_write_now() never gives an instant before the last cut.
--
-- No window crosses a UTC midnight: after a pause there are as many as that takes, at most @limit at a time. Nothing is cut
-- if the clock has not come to the next instant of the grid, or was stepped back behind the last cut.
--
-- @request: {"interval", "factors": [of kind 1, of kind 2, of kind 3], "contract"}, without a contract if there is nobody to
--            send it to.
CREATE PROCEDURE dbo.tenure_cut_usage_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @limit int,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @interval bigint = JSON_VALUE(@request, '$.interval'),
        @factor_1 bigint = JSON_VALUE(@request, '$.factors[0]'),
        @factor_2 bigint = JSON_VALUE(@request, '$.factors[1]'),
        @factor_3 bigint = JSON_VALUE(@request, '$.factors[2]'),
        @contract nvarchar(MAX) = JSON_QUERY(@request, '$.contract'),
        @now datetime2(6),
        @grid datetime2(6),
        @from_at datetime2(6),
        @to_at datetime2(6),
        @installation_id uniqueidentifier,
        @window_id bigint,
        @windows int = 0,
        @era int = 0,
        @is_same bit = 0;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;
    EXEC dbo.tenure_hold_off_all_writers_1;

    SET @now = dbo.tenure_now();
    SET @grid = dbo.tenure_later_1(
        @now, -(DATEDIFF_BIG(MICROSECOND, CAST('1970-01-01' AS datetime2(6)), @now) % @interval)
    );

    -- Without a hint, as the eras below: whoever changes these holds the cut lock alone, and that are we.
    SELECT @installation_id = i.installation_id, @from_at = i.last_cut_at, @window_id = i.last_window_id
    FROM dbo.installation AS i;

    IF @from_at < @grid
    BEGIN
        SELECT TOP (1)
            @era = e.era,
            @is_same = CASE
                WHEN e.factor_1 = @factor_1 AND e.factor_2 = @factor_2 AND e.factor_3 = @factor_3 THEN 1 ELSE 0
            END
        FROM dbo.usage_eras AS e
        ORDER BY e.era DESC;

        IF @is_same = 0
        BEGIN
            SET @era = @era + 1;
            INSERT INTO dbo.usage_eras (era, started_at, factor_1, factor_2, factor_3)
            VALUES (@era, @from_at, @factor_1, @factor_2, @factor_3);
        END;

        WHILE @from_at < @grid AND @windows < @limit
        BEGIN
            SET @to_at = DATEADD(DAY, 1, CAST(CAST(@from_at AS date) AS datetime2(6)));
            IF @to_at > @grid
                SET @to_at = @grid;
            SET @window_id = @window_id + 1;
            SET @windows = @windows + 1;
            INSERT INTO dbo.usage_windows (window_id, installation_id, era, started_at, ended_at, cut_at, contract)
            VALUES (@window_id, @installation_id, @era, @from_at, @to_at, @now, @contract);
            SET @from_at = @to_at;
        END;

        UPDATE dbo.installation
        SET last_cut_at = @from_at, last_window_id = @window_id
        WHERE only_row = 1;
    END;

    COMMIT TRANSACTION;

    SELECT @now AS now, @from_at AS last_cut_at, @windows AS windows;
END;

-- statement-break

-- Saves chunks of a window, numbered from @first on, and what is to be sent for each; with the last of them, the sums of the
-- window. What was saved before, by a call of which the answer was lost, is left as it is.
--
-- Chunks are saved, and delivered, by whoever holds the row of their window. It is held while this waits for those who accept
-- submissions next to its keys; nobody who holds a submission waits for a window.
--
-- @request: [[position, first session, last session, sessions, usage, submission], …]
CREATE PROCEDURE dbo.tenure_save_chunks_1
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
    DECLARE @piece TABLE (
        chunk int NOT NULL PRIMARY KEY,
        first_session_id uniqueidentifier NOT NULL,
        last_session_id uniqueidentifier NOT NULL,
        sessions int NOT NULL,
        usage_millionths bigint NOT NULL,
        submission_id uniqueidentifier NOT NULL
    );

    INSERT INTO @piece (chunk, first_session_id, last_session_id, sessions, usage_millionths, submission_id)
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

    -- The text of a uniqueidentifier has capitals, which an id of ours has not.
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
        FROM @piece AS p;

        IF @contract IS NOT NULL
            INSERT INTO dbo.submissions (
                submission_id, gateway, caller, idempotency_key, delivery_key, digest, contract, state, attempts,
                failures, next_attempt_at, created_at, last_modified_at
            )
            SELECT
                p.submission_id, 'usages', 'tenure', CONVERT(varbinary(255), k.delivery_key), k.delivery_key, 0x,
                @contract, 'pending', 0,
                0, @now, @now, @now
            FROM @piece AS p
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

-- statement-break

-- Stores the digest of each body before it is sent for the first time, and tells whether what was stored is this one.
--
-- @request: [[position, submission, digest in hexadecimal digits], …]
CREATE PROCEDURE dbo.tenure_seal_chunks_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @seal TABLE (
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

    INSERT INTO @seal (submission_id, digest)
    SELECT j.submission_id, CONVERT(varbinary(32), j.digest, 2)
    FROM OPENJSON(@request) WITH (submission_id uniqueidentifier '$[1]', digest varchar(64) '$[2]') AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    -- Lock the rows, in one order. TOP makes the ORDER BY binding.
    INSERT INTO @mine (window_id, chunk, submission_id, digest, new_digest)
    SELECT TOP (1000) c.window_id, c.chunk, d.submission_id, c.digest, d.digest
    FROM @seal AS d
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

-- statement-break

-- As tenure_finish_attempts_1, which instances of the version before still call, and what a delivery makes of chunks and
-- windows. Its transaction is part of this one, and its answer is kept back until this one is committed.
--
-- The windows come first, in the order of their ids: whoever saves chunks waits for keys of submissions while he holds a
-- window, and whoever accepts waits for submissions while he holds keys. So nobody who holds submissions waits for a window.
--
-- @request: [[position, submission, number, outcome, status, error, counts, pause], …]
CREATE PROCEDURE dbo.tenure_finish_attempts_2
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @now datetime2(6);
    DECLARE @arrived TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY
    );
    DECLARE @part TABLE (
        window_id bigint NOT NULL,
        chunk int NOT NULL,
        submission_id uniqueidentifier NOT NULL,
        PRIMARY KEY (window_id, chunk)
    );
    DECLARE @whole TABLE (
        window_id bigint NOT NULL PRIMARY KEY
    );
    DECLARE @mine TABLE (
        window_id bigint NOT NULL PRIMARY KEY,
        is_over bit NOT NULL
    );
    DECLARE @moved TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        state varchar(16) NOT NULL,
        next_attempt_at datetime2(6)
    );

    INSERT INTO @arrived (submission_id)
    SELECT j.submission_id
    FROM OPENJSON(@request) WITH (submission_id uniqueidentifier '$[1]', outcome varchar(16) '$[3]') AS j
    WHERE j.outcome = 'delivered';

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    INSERT INTO @part (window_id, chunk, submission_id)
    SELECT c.window_id, c.chunk, a.submission_id
    FROM @arrived AS a
    INNER JOIN dbo.usage_chunks AS c WITH (READCOMMITTEDLOCK, INDEX (usage_chunks_submission))
        ON a.submission_id = c.submission_id AND c.submission_id IS NOT NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    INSERT INTO @whole (window_id)
    SELECT p.window_id
    FROM @part AS p
    GROUP BY p.window_id;

    -- Lock the rows, in the order of their ids. TOP makes the ORDER BY binding.
    INSERT INTO @mine (window_id, is_over)
    SELECT TOP (1000)
        w.window_id, CASE WHEN w.chunked_at IS NOT NULL AND w.delivered_at IS NULL THEN 1 ELSE 0 END
    FROM @whole AS o
    INNER JOIN dbo.usage_windows AS w WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (usage_windows_pkey))
        ON o.window_id = w.window_id
    ORDER BY o.window_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    INSERT INTO @moved (submission_id, state, next_attempt_at)
    EXEC dbo.tenure_finish_attempts_1
        @name = @name,
        @holder = @holder,
        @epoch = @epoch,
        @request = @request;

    SET @now = dbo.tenure_now();

    UPDATE c
    SET c.delivered_at = @now
    FROM @part AS p
    INNER JOIN @moved AS d ON p.submission_id = d.submission_id
    INNER JOIN dbo.usage_chunks AS c ON p.window_id = c.window_id AND p.chunk = c.chunk
    WHERE d.state = 'delivered' AND c.delivered_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- What is left of a window is told by an index that a seal does not touch: so this waits for no row that is being sealed.
    UPDATE m
    SET m.is_over = 0
    FROM @mine AS m
    INNER JOIN dbo.usage_chunks AS c WITH (READCOMMITTEDLOCK, INDEX (usage_chunks_undelivered))
        ON m.window_id = c.window_id AND c.delivered_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE w
    SET w.delivered_at = @now
    FROM @mine AS m
    INNER JOIN dbo.usage_windows AS w ON m.window_id = w.window_id
    WHERE m.is_over = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT d.submission_id, d.state, d.next_attempt_at
    FROM @moved AS d;
END;

-- statement-break

-- As tenure_begin_attempts_1, but no attempt begins before its submission was accepted or commanded, whatever the clock says: what
-- was commanded after an attempt had begun is taken for retried by tenure_finish_attempts_1, and if the clock was stepped back,
-- that was all that had been accepted before.
--
-- @request: [submission, …]
CREATE PROCEDURE dbo.tenure_begin_attempts_2
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @now datetime2(6);
    DECLARE @asked TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY
    );
    DECLARE @mine TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        state varchar(16) NOT NULL,
        number int NOT NULL,
        failures int NOT NULL,
        last_modified_at datetime2(6) NOT NULL,
        next_attempt_at datetime2(6),
        is_open bit NOT NULL,
        is_due bit NOT NULL
    );

    INSERT INTO @asked (submission_id)
    SELECT j.submission_id
    FROM OPENJSON(@request) WITH (submission_id uniqueidentifier '$') AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    -- Rows that nobody holds.
    INSERT INTO @mine (submission_id, state, number, failures, last_modified_at, next_attempt_at, is_open, is_due)
    SELECT s.submission_id, s.state, s.attempts, s.failures, s.last_modified_at, s.next_attempt_at, 0, 0
    FROM @asked AS a
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (submissions_pkey))
        ON a.submission_id = s.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE m
    SET m.is_open = 1
    FROM @mine AS m
    INNER JOIN dbo.submission_attempts AS t WITH (READCOMMITTEDLOCK, INDEX (submission_attempts_pkey))
        ON m.submission_id = t.submission_id AND m.number = t.number
    WHERE m.state = 'pending' AND t.ended_at IS NULL AND t.epoch = @epoch
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_now();
    -- Once more: while it waited, the lease may have run out, and nothing may be told to have begun after that.
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    UPDATE m
    SET m.is_due = 1, m.number = m.number + 1
    FROM @mine AS m
    WHERE m.state = 'pending' AND m.is_open = 0 AND m.next_attempt_at <= @now;

    UPDATE s
    SET s.attempts = m.number, s.next_attempt_at = NULL
    FROM @mine AS m
    INNER JOIN dbo.submissions AS s ON m.submission_id = s.submission_id
    WHERE m.is_due = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    INSERT INTO dbo.submission_attempts (submission_id, number, epoch, holder, started_at)
    SELECT
        m.submission_id, m.number, @epoch, @holder, CASE WHEN m.last_modified_at > @now THEN m.last_modified_at ELSE @now END
    FROM @mine AS m
    WHERE m.is_due = 1;

    COMMIT TRANSACTION;

    -- Of what others hold it is only asked whether it is there: what they make of it is not known yet, and to wait for it
    -- would be what READPAST spares.
    SELECT
        a.submission_id,
        CASE
            WHEN m.is_open = 1 OR m.is_due = 1 THEN 'begun'
            WHEN m.state = 'pending' THEN 'later'
            WHEN m.state IS NULL AND s.submission_id IS NOT NULL THEN 'held'
            ELSE 'over'
        END AS found,
        CASE WHEN m.is_open = 1 OR m.is_due = 1 THEN m.number END AS number,
        CASE WHEN m.is_open = 1 OR m.is_due = 1 THEN m.failures END AS failures,
        CASE WHEN m.is_open = 0 AND m.is_due = 0 THEN m.next_attempt_at END AS next_attempt_at,
        @now AS now
    FROM @asked AS a
    LEFT JOIN @mine AS m ON a.submission_id = m.submission_id
    LEFT JOIN dbo.submissions AS s WITH (READUNCOMMITTED, INDEX (submissions_pkey))
        ON a.submission_id = s.submission_id AND m.submission_id IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
END;

-- statement-break

-- As tenure_command_submissions_1, but usage cannot be cancelled. Its transaction is part of this one, and its answer is kept
-- back until this one is committed.
--
-- @request: [submission, …]
CREATE PROCEDURE dbo.tenure_command_submissions_2 @command varchar(16), @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @others nvarchar(MAX);
    DECLARE @asked TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        is_refused bit NOT NULL
    );
    DECLARE @told TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        done bit NOT NULL
    );

    INSERT INTO @asked (submission_id, is_refused)
    SELECT j.submission_id, 0
    FROM OPENJSON(@request) WITH (submission_id uniqueidentifier '$') AS j;

    BEGIN TRANSACTION;

    -- Before any row is locked: the gateway of a submission never changes.
    IF @command = 'cancel'
        UPDATE a
        SET a.is_refused = 1
        FROM @asked AS a
        INNER JOIN dbo.submissions AS s WITH (READCOMMITTEDLOCK, INDEX (submissions_pkey))
            ON a.submission_id = s.submission_id
        WHERE s.gateway = 'usages'
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @others = (
        SELECT CONCAT(N'[', STRING_AGG(CONVERT(nvarchar(MAX), CONCAT(N'"', a.submission_id, N'"')), N','), N']')
        FROM @asked AS a
        WHERE a.is_refused = 0
    );

    INSERT INTO @told (submission_id, done)
    EXEC dbo.tenure_command_submissions_1 @command = @command, @request = @others;

    INSERT INTO @told (submission_id, done)
    SELECT a.submission_id, 0
    FROM @asked AS a
    WHERE a.is_refused = 1;

    -- What is retried during an attempt is so after its beginning, whatever the clock says. Its row is locked already.
    IF @command = 'retry'
        UPDATE s
        SET s.last_modified_at = DATEADD(MICROSECOND, 1, t.started_at)
        FROM @told AS d
        INNER JOIN dbo.submissions AS s ON d.submission_id = s.submission_id
        INNER JOIN dbo.submission_attempts AS t WITH (READCOMMITTEDLOCK, INDEX (submission_attempts_pkey))
            ON s.submission_id = t.submission_id AND s.attempts = t.number
        WHERE d.done = 1 AND t.ended_at IS NULL AND s.last_modified_at <= t.started_at
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT t.submission_id, t.done
    FROM @told AS t;
END;

-- statement-break

-- Deletes windows that ended long ago, with their chunks, from the oldest on, for as long as they are delivered or were not to
-- be; then sessions that closed before the windows which are kept begin. So a window that is there can always be rendered.
--
-- A window that is over, its chunks, and a session that is closed are written by nobody any more: of windows it is only read
-- which are, and the rest is taken if nobody holds it. What is deleted was stamped long ago, so there is no need to hold off
-- the cut.
--
-- The instant of the last cut is read first. If a window is cut meanwhile it begins at that instant, whether or not it is seen
-- here, so nothing that it needs is deleted. And the row of the installation, which all session writes read, is written last.
CREATE PROCEDURE dbo.tenure_prune_usage_1
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

    SET @before = dbo.tenure_later_1(dbo.tenure_now(), -@kept);

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

    -- The first that must stay, or the one after all that were looked at.
    SET @end = COALESCE(
        (SELECT MIN(o.window_id) FROM @oldest AS o WHERE o.is_over = 0),
        (SELECT MAX(o.window_id) + 1 FROM @oldest AS o),
        0
    );

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

    -- Not further than to the first that still has chunks.
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
