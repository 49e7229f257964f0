-- Retries or cancels submissions, and returns for each one that exists whether the command was carried out. `retry`
-- makes a submission pending and due now and sets its failures and unknowns to 0, in any state except delivered. If an attempt is
-- open, the submission becomes due when that attempt has failed. `cancel` cancels a submission that is pending or
-- failed. Usage cannot be cancelled.
--
-- A retry during an attempt gets a `last_modified_at` after the start of that attempt even if the clock was stepped
-- back: tenure_finish_attempts_1 compares the two.
--
-- Order: the submissions, by id; their attempts; the clock; the write.
--
-- @request: [submission, …]
CREATE OR ALTER PROCEDURE dbo.tenure_command_submissions_1 @command varchar(16), @request nvarchar(MAX)
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
        gateway varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        state varchar(16) NOT NULL,
        number int NOT NULL,
        open_since datetime2(6)
    );

    INSERT INTO @asked (submission_id)
    SELECT j.submission_id
    FROM OPENJSON(@request) WITH (submission_id uniqueidentifier '$') AS j;

    BEGIN TRANSACTION;

    -- Lock the rows, in the order of their ids. Without TOP the ORDER BY would be ignored.
    INSERT INTO @mine (submission_id, gateway, state, number)
    SELECT TOP (1000) s.submission_id, s.gateway, s.state, s.attempts
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

    COMMIT TRANSACTION;

    SELECT
        m.submission_id,
        CAST(
            CASE WHEN m.state = 'delivered' OR (@command = 'cancel' AND m.gateway = 'usages') THEN 0 ELSE 1 END AS bit
        ) AS done
    FROM @mine AS m;
END;
