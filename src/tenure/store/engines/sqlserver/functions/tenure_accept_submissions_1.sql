-- Accepts submissions, each once per caller, gateway and idempotency key. Returns for each request the submission that
-- is stored under its key. `same` is 1 if the given and the stored payload have the same digest. `new` is 1 if this
-- request stored the submission, now or in an earlier try whose response was lost.
--
-- JSON cannot contain bytes. So @payloads is the concatenation of all payloads, and each request contains the offset
-- and length of its payload.
--
-- Order: lock the keys in the order of their index, read the existing rows without keeping a lock, read the clock,
-- insert.
--
-- @request: [[position, submission, gateway, caller, key, digest in hexadecimal digits, offset of the payload in
--             @payloads, counted from 1, length of the payload, contract, id of the HTTP request, traceparent], …]
CREATE OR ALTER PROCEDURE dbo.tenure_accept_submissions_1 @request nvarchar(MAX), @payloads varbinary(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @now datetime2(6);

    -- The primary key sorts the requests in the order of the index submissions_key.
    DECLARE @wanted TABLE (
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
        request_id varchar(200) COLLATE Latin1_General_100_BIN2,
        traceparent varchar(200) COLLATE Latin1_General_100_BIN2,
        PRIMARY KEY (caller, gateway, idempotency_key, position)
    );
    DECLARE @known TABLE (
        position int NOT NULL PRIMARY KEY,
        submission_id uniqueidentifier NOT NULL,
        state varchar(16),
        digest varbinary(32)
    );

    INSERT INTO @wanted (
        position, submission_id, gateway, caller, idempotency_key, digest, payload_start, payload_length, contract,
        request_id, traceparent
    )
    SELECT
        j.position, j.submission_id, j.gateway, j.caller, CONVERT(varbinary(255), j.idempotency_key),
        CONVERT(varbinary(32), j.digest, 2), j.payload_start, j.payload_length, j.contract,
        j.request_id, j.traceparent
    FROM OPENJSON(@request) WITH (
        position int '$[0]',
        submission_id uniqueidentifier '$[1]',
        gateway varchar(200) '$[2]',
        caller varchar(200) '$[3]',
        idempotency_key varchar(255) '$[4]',
        digest varchar(64) '$[5]',
        payload_start int '$[6]',
        payload_length int '$[7]',
        contract nvarchar(MAX) '$[8]' AS JSON,
        request_id varchar(200) '$[9]',
        traceparent varchar(200) '$[10]'
    ) AS j;

    -- If several requests have the same key, only the first is inserted.
    UPDATE w
    SET w.first_position = f.position
    FROM @wanted AS w
    CROSS APPLY (
        SELECT MIN(e.position) AS position
        FROM @wanted AS e
        WHERE e.caller = w.caller AND e.gateway = w.gateway AND e.idempotency_key = w.idempotency_key
    ) AS f;

    BEGIN TRANSACTION;

    -- Lock the keys, including free ones, in the order of their index. Without TOP the ORDER BY would be ignored.
    INSERT INTO @known (position, submission_id)
    SELECT TOP (1000) w.position, s.submission_id
    FROM @wanted AS w
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (submissions_key))
        ON w.caller = s.caller AND w.gateway = s.gateway AND w.idempotency_key = s.idempotency_key
    ORDER BY w.caller, w.gateway, w.idempotency_key
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    -- To delete a row, a transaction must also lock the key of the row. This transaction has locked the keys of these
    -- rows, so no other transaction can delete the rows now. A transaction that updates a row never waits for a key, so
    -- waiting for such a transaction here cannot cause a deadlock.
    UPDATE k
    SET k.state = s.state, k.digest = s.digest
    FROM @known AS k
    INNER JOIN dbo.submissions AS s WITH (READCOMMITTEDLOCK, INDEX (submissions_pkey))
        ON k.submission_id = s.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_now();

    -- LOWER, because SQL Server formats a uniqueidentifier in upper case, and Tenure uses lower case.
    INSERT INTO dbo.submissions (
        submission_id, gateway, caller, idempotency_key, delivery_key, payload, digest, contract, state, attempts,
        failures, next_attempt_at, created_at, last_modified_at, request_id, traceparent
    )
    SELECT
        w.submission_id, w.gateway, w.caller, w.idempotency_key, LOWER(CONVERT(varchar(36), w.submission_id)),
        SUBSTRING(@payloads, w.payload_start, w.payload_length), w.digest, w.contract, 'pending', 0,
        0, @now, @now, @now, w.request_id, w.traceparent
    FROM @wanted AS w
    WHERE w.position = w.first_position AND NOT EXISTS (SELECT 1 FROM @known AS k WHERE k.position = w.position);

    COMMIT TRANSACTION;

    SELECT
        w.position,
        COALESCE(k.submission_id, f.submission_id) AS submission_id,
        COALESCE(k.state, 'pending') AS state,
        CAST(CASE WHEN COALESCE(k.digest, f.digest) = w.digest THEN 1 ELSE 0 END AS bit) AS same,
        CAST(CASE WHEN COALESCE(k.submission_id, f.submission_id) = w.submission_id THEN 1 ELSE 0 END AS bit) AS new
    FROM @wanted AS w
    INNER JOIN @wanted AS f ON w.first_position = f.position
    LEFT JOIN @known AS k ON w.position = k.position;
END;
