-- Retries or cancels submissions, and returns for each one that exists whether it is now pending (after `retry`) or
-- cancelled (after `cancel`). `retry` makes a submission pending and due now and sets its failures and unknowns to 0,
-- in any state except delivered. If an attempt is open, the submission becomes due when that attempt has failed.
-- `cancel` cancels a submission that is pending or failed. Usage cannot be cancelled. With an owner, the procedure
-- treats submissions of other callers as unknown.
--
-- Adds the number of submissions that it changes to the audit entry of the draft. A retry does not count as a change if
-- the submission is pending and due and has no failures, no unknowns and no binding pause, or if its attempt is open
-- and an earlier retry already waits for the end of that attempt.
--
-- If an attempt is open, a retry sets `last_modified_at` to a time after the start of that attempt, even if the clock
-- was stepped back, because tenure_finish_attempts_1 compares the two.
--
-- Order: lock the submissions in the order of their ids, read their attempts, read the clock, write.
--
-- @request: {"submissions": [submission, …], "owner", "draft": {"entry", "subject", "name", "request", "action",
-- "target", "detail"}}, without the values that are not set.
CREATE OR ALTER PROCEDURE dbo.tenure_command_submissions_1 @command varchar(16), @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @owner varchar(200) = JSON_VALUE(@request, '$.owner'),
        @draft nvarchar(MAX) = JSON_QUERY(@request, '$.draft'),
        @action varchar(32) = JSON_VALUE(@request, '$.draft.action'),
        @target varchar(200) = JSON_VALUE(@request, '$.draft.target'),
        @detail nvarchar(1000) = JSON_VALUE(@request, '$.draft.detail'),
        @changes int,
        @now datetime2(6);
    DECLARE @asked TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY
    );
    DECLARE @mine TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        gateway varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        state varchar(16) NOT NULL,
        number int NOT NULL,
        failures int NOT NULL,
        unknowns int NOT NULL,
        pause_is_binding bit NOT NULL,
        next_attempt_at datetime2(6),
        last_modified_at datetime2(6) NOT NULL,
        open_since datetime2(6)
    );

    INSERT INTO @asked (submission_id)
    SELECT j.submission_id
    FROM OPENJSON(@request, '$.submissions') WITH (submission_id uniqueidentifier '$') AS j
    -- The caller of a submission never changes, so it is read without a lock.
    WHERE
        @owner IS NULL
        OR EXISTS (
            SELECT 1
            FROM dbo.submissions AS s WITH (READUNCOMMITTED, INDEX (submissions_pkey))
            WHERE s.submission_id = j.submission_id AND s.caller = @owner
        );

    BEGIN TRANSACTION;

    -- Lock the rows, in the order of their ids. Without TOP the ORDER BY would be ignored.
    INSERT INTO @mine (
        submission_id, gateway, state, number, failures, unknowns, pause_is_binding, next_attempt_at, last_modified_at
    )
    SELECT TOP (1000)
        s.submission_id, s.gateway, s.state, s.attempts, s.failures, s.unknowns, s.pause_is_binding,
        s.next_attempt_at, s.last_modified_at
    FROM @asked AS a
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (submissions_pkey))
        ON a.submission_id = s.submission_id
    ORDER BY a.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE m
    SET m.open_since = t.started_at
    FROM @mine AS m
    INNER JOIN dbo.submission_attempts AS t WITH (READCOMMITTEDLOCK, INDEX (submission_attempts_pkey))
        ON m.submission_id = t.submission_id AND m.number = t.number
    WHERE t.ended_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_now();

    SELECT @changes = COUNT(*)
    FROM @mine AS m
    WHERE
        (@command = 'cancel' AND m.state IN ('pending', 'failed') AND m.gateway <> 'usages')
        OR (
            @command = 'retry' AND m.state <> 'delivered'
            AND (
                m.state <> 'pending' OR m.failures > 0 OR m.unknowns > 0 OR m.pause_is_binding = 1
                OR (m.open_since IS NULL AND (m.next_attempt_at IS NULL OR m.next_attempt_at > @now))
                OR m.open_since >= m.last_modified_at
            )
        );

    IF @command = 'retry'
        UPDATE s
        SET
            s.state = 'pending',
            s.failures = 0,
            s.unknowns = 0,
            s.pause_is_binding = 0,
            s.ended_at = NULL,
            s.last_modified_at = CASE
                WHEN m.open_since >= @now THEN DATEADD(MICROSECOND, 1, m.open_since) ELSE @now
            END,
            s.next_attempt_at = CASE WHEN m.open_since IS NULL THEN @now END
        FROM @mine AS m
        INNER JOIN dbo.submissions AS s ON m.submission_id = s.submission_id
        WHERE m.state <> 'delivered'
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    ELSE
        UPDATE s
        SET s.state = 'cancelled', s.next_attempt_at = NULL, s.ended_at = @now, s.last_modified_at = @now
        FROM @mine AS m
        INNER JOIN dbo.submissions AS s ON m.submission_id = s.submission_id
        WHERE m.state IN ('pending', 'failed') AND m.gateway <> 'usages'
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    IF @changes > 0
        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @draft, @action = @action, @target = @target, @detail = @detail,
            @changes = @changes;

    COMMIT TRANSACTION;

    SELECT
        m.submission_id,
        CAST(
            CASE WHEN m.state = 'delivered' OR (@command = 'cancel' AND m.gateway = 'usages') THEN 0 ELSE 1 END AS bit
        ) AS done
    FROM @mine AS m;
END;
