-- Saves the next batch of events of a gateway together with the submission of the batch, and sets the gateway's
-- position in the feed to the end of the batch, under the fence of the lease `events`. For a batch without events, only
-- the position changes. Returns 0 and does nothing if the gateway is not at the start of this batch, or if the last
-- batch of the gateway is neither delivered nor cancelled. It also returns 0 if an earlier call saved the batch but the
-- answer of that call was lost: the position is then already the end of the batch.
--
-- Order: check the fence (which locks the lease), lock the row of the gateway in event_subscriptions, read the clock,
-- write. While this transaction holds the row of the gateway, it may wait for transactions that accept submissions with
-- neighbouring keys. No transaction that holds a submission waits for the row of a gateway, so this wait cannot cause a
-- deadlock.
--
-- @request: {"gateway", "number", "from": [at, rank, id], "to": [at, rank, id], "types", "events", "digest" in
--            hexadecimal digits, "submission", "contract"}
CREATE OR ALTER PROCEDURE dbo.tenure_save_event_batch_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @gateway varchar(200) = JSON_VALUE(@request, '$.gateway'),
        @number bigint = JSON_VALUE(@request, '$.number'),
        @from_at datetime2(6) = JSON_VALUE(@request, '$.from[0]'),
        @from_rank smallint = JSON_VALUE(@request, '$.from[1]'),
        @from_id uniqueidentifier = JSON_VALUE(@request, '$.from[2]'),
        @to_at datetime2(6) = JSON_VALUE(@request, '$.to[0]'),
        @to_rank smallint = JSON_VALUE(@request, '$.to[1]'),
        @to_id uniqueidentifier = JSON_VALUE(@request, '$.to[2]'),
        @types varchar(200) = JSON_VALUE(@request, '$.types'),
        @events int = JSON_VALUE(@request, '$.events'),
        @digest varbinary(32) = CONVERT(varbinary(32), CAST(JSON_VALUE(@request, '$.digest') AS varchar(64)), 2),
        @submission_id uniqueidentifier = JSON_VALUE(@request, '$.submission'),
        @contract nvarchar(MAX) = JSON_QUERY(@request, '$.contract'),
        @now datetime2(6),
        @last_submission_id uniqueidentifier,
        @is_there bit = 0,
        @key varchar(200);

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    SELECT @is_there = 1, @last_submission_id = e.submission_id
    FROM dbo.event_subscriptions AS e WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (event_subscriptions_pkey))
    WHERE
        e.gateway = @gateway AND e.number = @number - 1 AND e.position_at = @from_at
        AND e.position_rank = @from_rank AND e.position_id = @from_id;

    IF EXISTS (
        SELECT 1
        FROM dbo.submissions AS s WITH (READCOMMITTEDLOCK, INDEX (submissions_pkey))
        WHERE s.submission_id = @last_submission_id AND s.state NOT IN ('delivered', 'cancelled')
    )
        SET @is_there = 0;

    SET @now = dbo.tenure_now();

    IF @is_there = 1
        UPDATE dbo.event_subscriptions
        SET
            position_at = @to_at,
            position_rank = @to_rank,
            position_id = @to_id,
            number = CASE WHEN @events > 0 THEN @number ELSE number END,
            submission_id = CASE WHEN @events > 0 THEN @submission_id ELSE submission_id END
        WHERE gateway = @gateway;

    IF @is_there = 1 AND @events > 0
    BEGIN
        -- LOWER, because SQL Server formats a uniqueidentifier in upper case, and Tenure uses lower case.
        SELECT
            @key = CAST(
                CONCAT(LOWER(CONVERT(varchar(36), i.installation_id)), '-events-', @gateway, '-', @number)
                AS varchar(200)
            )
        FROM dbo.installation AS i;

        INSERT INTO dbo.event_batches (
            gateway, number, from_at, from_rank, from_id, to_at, to_rank, to_id, types, events, digest, submission_id
        )
        VALUES (
            @gateway, @number, @from_at, @from_rank, @from_id, @to_at, @to_rank, @to_id, @types, @events, @digest,
            @submission_id
        );

        INSERT INTO dbo.submissions (
            submission_id, gateway, caller, idempotency_key, delivery_key, digest, contract, state, attempts,
            failures, next_attempt_at, created_at, last_modified_at
        )
        VALUES (
            @submission_id, @gateway, ' tenure', CONVERT(varbinary(255), @key), @key, 0x, @contract, 'pending', 0,
            0, @now, @now, @now
        );
    END;

    COMMIT TRANSACTION;

    SELECT @is_there AS saved;
END;
