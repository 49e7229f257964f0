-- Records attempts before their requests are sent, under the fence of the executor. `found` is `begun` (may be sent),
-- `later` (due at `next_attempt_at`, which is NULL while an attempt of an earlier epoch is open), `over` (not pending,
-- or unknown) or `held` (another transaction holds the row lock).
--
-- While an attempt is open, its submission has no `next_attempt_at`, so no second attempt can begin. If an attempt of
-- this epoch is already open, it is returned as `begun`: the executor never begins an attempt of a submission that it
-- is sending, so it must have lost the answer to the call that began this attempt.
--
-- If `early` is 1, the gateway of the submission has begun to recover. The attempt then begins even before the
-- submission is due, unless the pause is binding. Such an early attempt stores the time at which the submission would
-- have been due (`was_due_at`), so that a repeated call returns the same time.
--
-- The start of an attempt is never before the time at which its submission was accepted or last retried by hand, even
-- if the clock was stepped back. Otherwise tenure_finish_attempts_1 would treat the submission as retried by hand
-- during the attempt.
--
-- Order: check the fence (which locks the lease), lock the rows that no other transaction holds, read their attempts,
-- read the clock, check the fence again, write.
--
-- @request: [[position, submission, early], …]
CREATE OR ALTER PROCEDURE dbo.tenure_begin_attempts_1
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
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        early bit NOT NULL
    );
    DECLARE @mine TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        state varchar(16) NOT NULL,
        number int NOT NULL,
        failures int NOT NULL,
        unknowns int NOT NULL,
        last_modified_at datetime2(6) NOT NULL,
        next_attempt_at datetime2(6),
        was_due_at datetime2(6),
        may_be_early bit NOT NULL,
        is_open bit NOT NULL,
        is_due bit NOT NULL
    );

    INSERT INTO @asked (submission_id, early)
    SELECT j.submission_id, j.early
    FROM OPENJSON(@request) WITH (submission_id uniqueidentifier '$[1]', early bit '$[2]') AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    -- Lock the rows that no other transaction holds.
    INSERT INTO @mine (
        submission_id, state, number, failures, unknowns, last_modified_at, next_attempt_at, may_be_early, is_open, is_due
    )
    SELECT
        s.submission_id, s.state, s.attempts, s.failures, s.unknowns, s.last_modified_at, s.next_attempt_at,
        CASE WHEN a.early = 1 AND s.pause_is_binding = 0 THEN 1 ELSE 0 END, 0, 0
    FROM @asked AS a
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (submissions_pkey))
        ON a.submission_id = s.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE m
    SET m.is_open = 1, m.was_due_at = t.was_due_at
    FROM @mine AS m
    INNER JOIN dbo.submission_attempts AS t WITH (READCOMMITTEDLOCK, INDEX (submission_attempts_pkey))
        ON m.submission_id = t.submission_id AND m.number = t.number
    WHERE m.state = 'pending' AND t.ended_at IS NULL AND t.epoch = @epoch
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_now();
    -- The lease may have expired since the first check. Once the lease has expired, no attempt may be returned as
    -- begun.
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    UPDATE m
    SET
        m.is_due = 1,
        m.number = m.number + 1,
        m.was_due_at = CASE WHEN m.next_attempt_at > @now THEN m.next_attempt_at END
    FROM @mine AS m
    WHERE
        m.state = 'pending' AND m.is_open = 0 AND m.next_attempt_at IS NOT NULL
        AND (m.next_attempt_at <= @now OR m.may_be_early = 1);

    UPDATE s
    SET s.attempts = m.number, s.next_attempt_at = NULL
    FROM @mine AS m
    INNER JOIN dbo.submissions AS s ON m.submission_id = s.submission_id
    WHERE m.is_due = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    INSERT INTO dbo.submission_attempts (submission_id, number, epoch, holder, started_at, was_due_at)
    SELECT
        m.submission_id, m.number, @epoch, @holder,
        CASE WHEN m.last_modified_at > @now THEN m.last_modified_at ELSE @now END, m.was_due_at
    FROM @mine AS m
    WHERE m.is_due = 1;

    COMMIT TRANSACTION;

    -- If another transaction holds a submission, only check that the submission exists. Reading its state would wait
    -- for the other transaction to commit, which READPAST above avoids.
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
        COALESCE(m.unknowns, 0) AS unknowns,
        m.was_due_at,
        CASE WHEN m.is_open = 0 AND m.is_due = 0 THEN m.next_attempt_at END AS next_attempt_at,
        @now AS now
    FROM @asked AS a
    LEFT JOIN @mine AS m ON a.submission_id = m.submission_id
    LEFT JOIN dbo.submissions AS s WITH (READUNCOMMITTED, INDEX (submissions_pkey))
        ON a.submission_id = s.submission_id AND m.submission_id IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
END;
