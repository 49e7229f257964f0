-- Closes attempts that earlier epochs left open, under the fence of the executor: their outcome is unknown. They do not
-- count against the limit, and their submissions are due at once. Returns how many submissions it found, at most
-- @limit; the caller repeats it until there are none.
--
-- Order: the lease; a read that keeps no lock; the submissions, by id; their attempts, again; the clock; the writes.
-- Attempts are checked again under the lock of their submission: another call may have closed one meanwhile and begun
-- the next.
CREATE OR ALTER PROCEDURE dbo.tenure_close_orphaned_attempts_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @limit int
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @now datetime2(6);
    DECLARE @left TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY
    );
    DECLARE @mine TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        state varchar(16) NOT NULL
    );
    DECLARE @open TABLE (
        submission_id uniqueidentifier NOT NULL,
        number int NOT NULL,
        PRIMARY KEY (submission_id, number)
    );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    INSERT INTO @left (submission_id)
    SELECT TOP (@limit) t.submission_id
    FROM dbo.submission_attempts AS t WITH (READCOMMITTEDLOCK, FORCESEEK, INDEX (submission_attempts_open))
    WHERE t.epoch < @epoch AND t.ended_at IS NULL
    GROUP BY t.submission_id
    ORDER BY t.submission_id
    OPTION (MAXDOP 1);

    -- Lock the rows, in the order of their ids. TOP makes the ORDER BY binding.
    INSERT INTO @mine (submission_id, state)
    SELECT TOP (@limit) s.submission_id, s.state
    FROM @left AS l
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (submissions_pkey))
        ON l.submission_id = s.submission_id
    ORDER BY l.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    INSERT INTO @open (submission_id, number)
    SELECT t.submission_id, t.number
    FROM @mine AS m
    INNER JOIN dbo.submission_attempts AS t WITH (READCOMMITTEDLOCK, INDEX (submission_attempts_pkey))
        ON m.submission_id = t.submission_id
    WHERE t.epoch < @epoch AND t.ended_at IS NULL
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_now();

    UPDATE t
    SET t.ended_at = @now, t.outcome = 'unknown', t.error = N'the executor stopped before it recorded the outcome'
    FROM @open AS o
    INNER JOIN dbo.submission_attempts AS t ON o.submission_id = t.submission_id AND o.number = t.number
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE s
    SET s.next_attempt_at = @now
    FROM @open AS o
    INNER JOIN @mine AS m ON o.submission_id = m.submission_id
    INNER JOIN dbo.submissions AS s ON o.submission_id = s.submission_id
    WHERE m.state = 'pending'
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT COUNT(*) AS found
    FROM @left;
END;
