-- Accepts submissions, each once for its caller, gateway and key. Tells of each what is there under its key now, whether it
-- has the same payload, by its digest, and whether this very wish made it.
--
-- Payloads are bytes, which JSON has no room for: they come one behind the other, and a wish says where its own begins.
--
-- @request: [[position, submission, gateway, caller, key, digest in hexadecimal digits, where the payload begins in
--             @payloads, counted from 1, its length, contract], …]
CREATE PROCEDURE dbo.tenure_accept_submissions_1 @request nvarchar(MAX), @payloads varbinary(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @now datetime2(6);

    -- The primary key sorts as the index on the keys does.
    DECLARE @wish TABLE (
        position int NOT NULL,
        first_position int,
        submission_id uniqueidentifier NOT NULL,
        gateway varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        caller varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        idempotency_key varbinary(255) NOT NULL,
        digest varbinary(32) NOT NULL,
        payload_start int NOT NULL,
        payload_length int NOT NULL,
        contract nvarchar(MAX) NOT NULL,
        PRIMARY KEY (caller, gateway, idempotency_key, position)
    );
    DECLARE @known TABLE (
        position int NOT NULL PRIMARY KEY,
        submission_id uniqueidentifier NOT NULL,
        state varchar(16),
        digest varbinary(32)
    );

    INSERT INTO @wish (
        position, submission_id, gateway, caller, idempotency_key, digest, payload_start, payload_length, contract
    )
    SELECT
        j.position, j.submission_id, j.gateway, j.caller, CONVERT(varbinary(255), j.idempotency_key),
        CONVERT(varbinary(32), j.digest, 2), j.payload_start, j.payload_length, j.contract
    FROM OPENJSON(@request) WITH (
        position int '$[0]',
        submission_id uniqueidentifier '$[1]',
        gateway varchar(200) '$[2]',
        caller varchar(200) '$[3]',
        idempotency_key varchar(255) '$[4]',
        digest varchar(64) '$[5]',
        payload_start int '$[6]',
        payload_length int '$[7]',
        contract nvarchar(MAX) '$[8]' AS JSON
    ) AS j;

    -- Of several wishes with one key, the first counts.
    UPDATE w
    SET w.first_position = f.position
    FROM @wish AS w
    CROSS APPLY (
        SELECT MIN(e.position) AS position
        FROM @wish AS e
        WHERE e.caller = w.caller AND e.gateway = w.gateway AND e.idempotency_key = w.idempotency_key
    ) AS f;

    BEGIN TRANSACTION;

    -- Lock the keys, also those that are free, in the order of their index. TOP makes the ORDER BY binding.
    INSERT INTO @known (position, submission_id)
    SELECT TOP (1000) w.position, s.submission_id
    FROM @wish AS w
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (submissions_key))
        ON w.caller = s.caller AND w.gateway = s.gateway AND w.idempotency_key = s.idempotency_key
    ORDER BY w.caller, w.gateway, w.idempotency_key
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- Whoever deletes a row has its key, so these stay. Whoever writes one waits for no key, so we may wait for him.
    UPDATE k
    SET k.state = s.state, k.digest = s.digest
    FROM @known AS k
    INNER JOIN dbo.submissions AS s WITH (READCOMMITTEDLOCK, INDEX (submissions_pkey))
        ON k.submission_id = s.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_now();

    -- The text of a uniqueidentifier has capitals, which an id of ours has not.
    INSERT INTO dbo.submissions (
        submission_id, gateway, caller, idempotency_key, delivery_key, payload, digest, contract, state, attempts,
        failures, next_attempt_at, created_at, last_modified_at
    )
    SELECT
        w.submission_id, w.gateway, w.caller, w.idempotency_key, LOWER(CONVERT(varchar(36), w.submission_id)),
        SUBSTRING(@payloads, w.payload_start, w.payload_length), w.digest, w.contract, 'pending', 0,
        0, @now, @now, @now
    FROM @wish AS w
    WHERE w.position = w.first_position AND NOT EXISTS (SELECT 1 FROM @known AS k WHERE k.position = w.position);

    COMMIT TRANSACTION;

    SELECT
        w.position,
        COALESCE(k.submission_id, f.submission_id) AS submission_id,
        COALESCE(k.state, 'pending') AS state,
        CAST(CASE WHEN COALESCE(k.digest, f.digest) = w.digest THEN 1 ELSE 0 END AS bit) AS same,
        CAST(CASE WHEN COALESCE(k.submission_id, f.submission_id) = w.submission_id THEN 1 ELSE 0 END AS bit) AS new
    FROM @wish AS w
    INNER JOIN @wish AS f ON w.first_position = f.position
    LEFT JOIN @known AS k ON w.position = k.position;
END;

-- statement-break

-- Records attempts before they are sent, under the fence of the executor. `begun` may be sent; `later` is due at
-- `next_attempt_at` only; `over` needs no more attempts; `held` is what somebody else is changing at this moment.
--
-- While an attempt is under way its submission has no next one: no second attempt can begin beside it. An attempt of this
-- epoch that is open already is told as begun, too: the executor asks for nothing that it is sending, so it is one of which
-- it never got the answer.
--
-- @request: [submission, …]
CREATE PROCEDURE dbo.tenure_begin_attempts_1
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
    INSERT INTO @mine (submission_id, state, number, failures, next_attempt_at, is_open, is_due)
    SELECT s.submission_id, s.state, s.attempts, s.failures, s.next_attempt_at, 0, 0
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
    SELECT m.submission_id, m.number, @epoch, @holder, @now
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

-- Closes attempts with what became of them, under the fence of the executor. An accepted attempt makes its submission
-- delivered even if it was cancelled meanwhile; anything else moves only what is still pending. `counts`: whether it counts
-- against the limit; `pause`: until the next one, null if there is to be none.
--
-- A repetition after a lost answer finds the attempts closed, and changes nothing twice.
--
-- @request: [[position, submission, number, outcome, status, error, counts, pause], …]
CREATE PROCEDURE dbo.tenure_finish_attempts_1
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
        pause bigint
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

    INSERT INTO @said (submission_id, number, outcome, status, error, counts, pause)
    SELECT j.submission_id, j.number, j.outcome, j.status, j.error, j.counts, j.pause
    FROM OPENJSON(@request) WITH (
        submission_id uniqueidentifier '$[1]',
        number int '$[2]',
        outcome varchar(16) '$[3]',
        status int '$[4]',
        error nvarchar(1000) '$[5]',
        counts bit '$[6]',
        pause bigint '$[7]'
    ) AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    -- Lock the rows, in the order of their ids. TOP makes the ORDER BY binding.
    INSERT INTO @mine (submission_id, state, next_attempt_at, ended_at, last_modified_at, is_open, is_retried)
    SELECT TOP (1000) s.submission_id, s.state, s.next_attempt_at, s.ended_at, s.last_modified_at, 0, 0
    FROM @said AS e
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (submissions_pkey))
        ON e.submission_id = s.submission_id
    ORDER BY e.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- Retried by hand while its attempt was under way: due as soon as that has failed, and counted from 0.
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
            ELSE dbo.tenure_later_1(@now, e.pause)
        END,
        m.ended_at = CASE
            WHEN e.outcome = 'delivered' OR (m.state = 'pending' AND e.pause IS NULL AND m.is_retried = 0) THEN @now
            ELSE m.ended_at
        END
    FROM @mine AS m
    INNER JOIN @said AS e ON m.submission_id = e.submission_id
    WHERE m.is_open = 1;

    UPDATE t
    SET t.ended_at = @now, t.outcome = e.outcome, t.status = e.status, t.error = e.error
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
        s.last_error = CASE WHEN e.outcome <> 'delivered' THEN e.error END,
        s.ended_at = m.ended_at
    FROM @said AS e
    INNER JOIN @mine AS m ON e.submission_id = m.submission_id
    INNER JOIN dbo.submissions AS s ON e.submission_id = s.submission_id
    WHERE m.is_open = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT m.submission_id, m.state, m.next_attempt_at
    FROM @mine AS m;
END;

-- statement-break

-- Closes what attempts of earlier epochs have left open: nobody can say what became of them. They do not count against the
-- limit, and their submissions are due at once.
--
-- They are looked at again under the lock of their row: what another call of this has closed meanwhile may have its next
-- attempt under way.
CREATE PROCEDURE dbo.tenure_close_unknown_1 @name varchar(200), @holder varchar(200), @epoch bigint, @limit int
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
    SET t.ended_at = @now, t.outcome = 'unknown', t.error = N'whoever sent it did not say what became of it'
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

-- statement-break

-- Says of what is due why it is not sent.
--
-- @request: {"error", "submissions": [submission, …]}
CREATE PROCEDURE dbo.tenure_explain_waiting_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @error nvarchar(1000) = JSON_VALUE(@request, '$.error'), @explained int;
    DECLARE @asked TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY
    );
    DECLARE @mine TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        state varchar(16) NOT NULL,
        last_error nvarchar(1000) COLLATE Latin1_General_100_BIN2
    );

    INSERT INTO @asked (submission_id)
    SELECT j.submission_id
    FROM OPENJSON(@request, '$.submissions') WITH (submission_id uniqueidentifier '$') AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    -- Lock the rows, in the order of their ids. TOP makes the ORDER BY binding.
    INSERT INTO @mine (submission_id, state, last_error)
    SELECT TOP (1000) s.submission_id, s.state, s.last_error
    FROM @asked AS a
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (submissions_pkey))
        ON a.submission_id = s.submission_id
    ORDER BY a.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE s
    SET s.last_error = @error
    FROM @mine AS m
    INNER JOIN dbo.submissions AS s ON m.submission_id = s.submission_id
    WHERE m.state = 'pending' AND (m.last_error IS NULL OR m.last_error <> @error)
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @explained = @@ROWCOUNT;

    COMMIT TRANSACTION;

    SELECT @explained AS explained;
END;

-- statement-break

-- retry: due now, with all its attempts before it again, whether it waits, was given up or cancelled; if an attempt is under
-- way, when that has failed. cancel: what is not delivered. Tells of each that exists whether it now is as wanted.
--
-- @request: [submission, …]
CREATE PROCEDURE dbo.tenure_command_submissions_1 @command varchar(16), @request nvarchar(MAX)
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
        is_open bit NOT NULL
    );

    INSERT INTO @asked (submission_id)
    SELECT j.submission_id
    FROM OPENJSON(@request) WITH (submission_id uniqueidentifier '$') AS j;

    BEGIN TRANSACTION;

    -- Lock the rows, in the order of their ids. TOP makes the ORDER BY binding.
    INSERT INTO @mine (submission_id, state, number, is_open)
    SELECT TOP (1000) s.submission_id, s.state, s.attempts, 0
    FROM @asked AS a
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (submissions_pkey))
        ON a.submission_id = s.submission_id
    ORDER BY a.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE m
    SET m.is_open = 1
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
            s.ended_at = NULL,
            s.last_modified_at = @now,
            s.next_attempt_at = CASE m.is_open WHEN 0 THEN @now END
        FROM @mine AS m
        INNER JOIN dbo.submissions AS s ON m.submission_id = s.submission_id
        WHERE m.state <> 'delivered'
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    ELSE
        UPDATE s
        SET s.state = 'cancelled', s.next_attempt_at = NULL, s.ended_at = @now, s.last_modified_at = @now
        FROM @mine AS m
        INNER JOIN dbo.submissions AS s ON m.submission_id = s.submission_id
        WHERE m.state IN ('pending', 'failed')
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    COMMIT TRANSACTION;

    SELECT m.submission_id, CAST(CASE m.state WHEN 'delivered' THEN 0 ELSE 1 END AS bit) AS done
    FROM @mine AS m;
END;

-- statement-break

-- As tenure_prune_1, which instances of the version before still call, and submissions that are delivered or cancelled. Its
-- transaction is part of this one, and its answer is kept back until this one is committed.
--
-- Of submissions, too, it takes what nobody holds: first the rows, then their keys, since whoever accepts waits for a row
-- while he holds its key.
CREATE PROCEDURE dbo.tenure_prune_2
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @limit int,
    @history bigint,
    @runs bigint,
    @submissions bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @before datetime2(6), @deleted int = 1, @pruned_submissions int;
    DECLARE @pruned TABLE (
        lease_history int NOT NULL,
        job_runs int NOT NULL
    );
    DECLARE @old TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        caller varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        gateway varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL,
        idempotency_key varbinary(255) NOT NULL,
        has_key bit NOT NULL
    );

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;
    INSERT INTO @pruned (lease_history, job_runs)
    EXEC dbo.tenure_prune_1
        @name = @name,
        @holder = @holder,
        @epoch = @epoch,
        @limit = @limit,
        @history = @history,
        @runs = @runs;

    SET @before = dbo.tenure_later_1(dbo.tenure_now(), -@submissions);

    INSERT INTO @old (submission_id, caller, gateway, idempotency_key, has_key)
    SELECT TOP (@limit) s.submission_id, s.caller, s.gateway, s.idempotency_key, 0
    FROM dbo.submissions AS s
        WITH (UPDLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, FORCESEEK, INDEX (submissions_ended_at))
    WHERE s.state IN ('delivered', 'cancelled') AND s.ended_at < @before
    ORDER BY s.ended_at
    OPTION (MAXDOP 1);

    UPDATE o
    SET o.has_key = 1
    FROM @old AS o
    INNER JOIN dbo.submissions AS s WITH (XLOCK, READPAST, ROWLOCK, READCOMMITTEDLOCK, INDEX (submissions_key))
        ON o.caller = s.caller AND o.gateway = s.gateway AND o.idempotency_key = s.idempotency_key
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- In portions: a statement with 5000 locks would be given the whole table instead.
    WHILE @deleted > 0
    BEGIN
        DELETE TOP (2000) t
        FROM @old AS o
        INNER JOIN dbo.submission_attempts AS t ON o.submission_id = t.submission_id
        WHERE o.has_key = 1
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
        SET @deleted = @@ROWCOUNT;
    END;

    DELETE s
    FROM @old AS o
    INNER JOIN dbo.submissions AS s ON o.submission_id = s.submission_id
    WHERE o.has_key = 1
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @pruned_submissions = @@ROWCOUNT;

    COMMIT TRANSACTION;

    SELECT p.lease_history, p.job_runs, @pruned_submissions AS submissions
    FROM @pruned AS p;
END;
