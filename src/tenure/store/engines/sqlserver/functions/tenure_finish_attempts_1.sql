-- Closes attempts with their outcomes, under the fence of the executor, and returns the states of the submissions. A
-- delivered attempt makes its submission delivered even if the submission was cancelled during the attempt; any other
-- outcome changes the state only of a pending submission. `counts` is 1 if the attempt counts against `max_attempts` of
-- the contract, and `receipt` is 1 if the response named the digest of the body. `pause` is the number of microseconds
-- until the next attempt, null if there is none. If `binding` is 1, no early attempt may begin before the pause has
-- passed. An `unknown` outcome is counted in `unknowns`. When a submission of usage is delivered, its chunk is marked
-- as delivered. A window is marked as delivered when it is completely divided and all its chunks are delivered. A call
-- that is repeated after a lost answer finds the attempts closed and changes nothing.
--
-- A submission that was retried by hand while its attempt was open (`last_modified_at` after the attempt's start) is
-- due at once if the attempt fails. The retry has set `failures` and `unknowns` to 0, and this attempt does not
-- increase them.
--
-- Order: check the fence (which locks the lease), lock the windows and then the submissions, each in the order of their
-- ids, read the attempts, read the clock, write. Windows come before submissions: tenure_save_chunks_1 waits for keys
-- of submissions while it holds a window, and tenure_accept_submissions_1 waits for submissions while it holds keys. So
-- no transaction that holds submissions may wait for a window.
--
-- @request: [[position, submission, number, outcome, status, error, counts, pause, binding, receipt], …]
CREATE OR ALTER PROCEDURE dbo.tenure_finish_attempts_1
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
    DECLARE @said TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        number int NOT NULL,
        outcome varchar(16) NOT NULL,
        status int,
        error nvarchar(1000),
        counts bit NOT NULL,
        pause bigint,
        is_binding bit NOT NULL,
        has_receipt bit NOT NULL
    );
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
    DECLARE @window TABLE (
        window_id bigint NOT NULL PRIMARY KEY,
        is_over bit NOT NULL
    );
    DECLARE @mine TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        state varchar(16) NOT NULL,
        next_attempt_at datetime2(6),
        ended_at datetime2(6),
        last_modified_at datetime2(6) NOT NULL,
        is_open bit NOT NULL,
        is_retried bit NOT NULL
    );

    INSERT INTO @said (submission_id, number, outcome, status, error, counts, pause, is_binding, has_receipt)
    SELECT
        j.submission_id, j.number, j.outcome, j.status, j.error, j.counts, j.pause, j.is_binding, j.has_receipt
    FROM OPENJSON(@request) WITH (
        submission_id uniqueidentifier '$[1]',
        number int '$[2]',
        outcome varchar(16) '$[3]',
        status int '$[4]',
        error nvarchar(1000) '$[5]',
        counts bit '$[6]',
        pause bigint '$[7]',
        is_binding bit '$[8]',
        has_receipt bit '$[9]'
    ) AS j;

    INSERT INTO @arrived (submission_id)
    SELECT e.submission_id
    FROM @said AS e
    WHERE e.outcome = 'delivered';

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

    -- Lock the windows, in the order of their ids. Without TOP the ORDER BY would be ignored.
    INSERT INTO @window (window_id, is_over)
    SELECT TOP (1000)
        w.window_id, CASE WHEN w.chunked_at IS NOT NULL AND w.delivered_at IS NULL THEN 1 ELSE 0 END
    FROM @whole AS o
    INNER JOIN dbo.usage_windows AS w WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (usage_windows_pkey))
        ON o.window_id = w.window_id
    ORDER BY o.window_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- Lock the submissions, in the order of their ids.
    INSERT INTO @mine (submission_id, state, next_attempt_at, ended_at, last_modified_at, is_open, is_retried)
    SELECT TOP (1000) s.submission_id, s.state, s.next_attempt_at, s.ended_at, s.last_modified_at, 0, 0
    FROM @said AS e
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (submissions_pkey))
        ON e.submission_id = s.submission_id
    ORDER BY e.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE m
    SET m.is_open = 1, m.is_retried = CASE WHEN m.last_modified_at > t.started_at THEN 1 ELSE 0 END
    FROM @said AS e
    INNER JOIN @mine AS m ON e.submission_id = m.submission_id
    INNER JOIN dbo.submission_attempts AS t WITH (READCOMMITTEDLOCK, INDEX (submission_attempts_pkey))
        ON e.submission_id = t.submission_id AND e.number = t.number
    WHERE t.ended_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_now();

    UPDATE m
    SET
        m.state = CASE
            WHEN e.outcome = 'delivered' THEN 'delivered'
            WHEN m.state = 'pending' AND e.pause IS NULL AND m.is_retried = 0 THEN 'failed'
            ELSE m.state
        END,
        m.next_attempt_at = CASE
            WHEN e.outcome = 'delivered' OR m.state <> 'pending' THEN NULL
            WHEN m.is_retried = 1 THEN @now
            ELSE dbo.tenure_add_microseconds_1(@now, e.pause)
        END,
        m.ended_at = CASE
            WHEN e.outcome = 'delivered' OR (m.state = 'pending' AND e.pause IS NULL AND m.is_retried = 0) THEN @now
            ELSE m.ended_at
        END
    FROM @mine AS m
    INNER JOIN @said AS e ON m.submission_id = e.submission_id
    WHERE m.is_open = 1;

    UPDATE t
    SET
        t.ended_at = @now,
        t.outcome = e.outcome,
        t.status = e.status,
        t.error = e.error,
        t.has_receipt = e.has_receipt
    FROM @said AS e
    INNER JOIN @mine AS m ON e.submission_id = m.submission_id
    INNER JOIN dbo.submission_attempts AS t ON e.submission_id = t.submission_id AND e.number = t.number
    WHERE m.is_open = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE s
    SET
        s.state = m.state,
        s.next_attempt_at = m.next_attempt_at,
        s.failures = s.failures + CASE WHEN m.is_retried = 0 THEN e.counts ELSE 0 END,
        s.unknowns = s.unknowns + CASE WHEN m.is_retried = 0 AND e.outcome = 'unknown' THEN 1 ELSE 0 END,
        s.pause_is_binding = CASE WHEN m.is_retried = 0 THEN e.is_binding ELSE 0 END,
        s.last_error = CASE WHEN e.outcome <> 'delivered' THEN e.error END,
        s.ended_at = m.ended_at
    FROM @said AS e
    INNER JOIN @mine AS m ON e.submission_id = m.submission_id
    INNER JOIN dbo.submissions AS s ON e.submission_id = s.submission_id
    WHERE m.is_open = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE c
    SET c.delivered_at = @now, c.has_receipt = e.has_receipt
    FROM @part AS p
    INNER JOIN @mine AS m ON p.submission_id = m.submission_id
    INNER JOIN @said AS e ON p.submission_id = e.submission_id
    INNER JOIN dbo.usage_chunks AS c ON p.window_id = c.window_id AND p.chunk = c.chunk
    WHERE m.state = 'delivered' AND c.delivered_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- This statement reads undelivered chunks from an index that tenure_store_digests_1 does not change. So it does not
    -- wait for a row whose digest is being stored.
    UPDATE o
    SET o.is_over = 0
    FROM @window AS o
    INNER JOIN dbo.usage_chunks AS c WITH (READCOMMITTEDLOCK, INDEX (usage_chunks_undelivered))
        ON o.window_id = c.window_id AND c.delivered_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE w
    SET w.delivered_at = @now
    FROM @window AS o
    INNER JOIN dbo.usage_windows AS w ON o.window_id = w.window_id
    WHERE o.is_over = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT m.submission_id, m.state, m.next_attempt_at
    FROM @mine AS m;
END;
