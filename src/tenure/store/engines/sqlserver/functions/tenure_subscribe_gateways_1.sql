-- Returns the position of each gateway in the feed, under the fence of the loop that saves batches of events. The
-- position of a new gateway is the current time. `is_settled` means that the next batch may be saved: the gateway has
-- no batch yet, or its last batch is delivered, cancelled or already pruned.
--
-- Only the holder of the lease writes rows of event_subscriptions, so the fence protects these rows like a lock.
--
-- @request: [[position, gateway], …]
CREATE OR ALTER PROCEDURE dbo.tenure_subscribe_gateways_1
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
    DECLARE @given TABLE (
        gateway varchar(200) COLLATE Latin1_General_100_BIN2 NOT NULL PRIMARY KEY,
        is_known bit NOT NULL
    );

    INSERT INTO @given (gateway, is_known)
    SELECT j.gateway, 0
    FROM OPENJSON(@request) WITH (gateway varchar(200) '$[1]') AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;
    -- tenure_write_now() reads the horizon without a lock, so acquire the cut lock first.
    EXEC dbo.tenure_lock_cut_shared_1;

    UPDATE g
    SET g.is_known = 1
    FROM @given AS g
    INNER JOIN dbo.event_subscriptions AS e WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (event_subscriptions_pkey))
        ON g.gateway = e.gateway
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    SET @now = dbo.tenure_write_now();

    INSERT INTO dbo.event_subscriptions (gateway, position_at, position_rank, position_id, number)
    SELECT g.gateway, @now, 2, '00000000-0000-0000-0000-000000000000', 0
    FROM @given AS g
    WHERE g.is_known = 0;

    COMMIT TRANSACTION;

    SELECT
        e.gateway,
        e.position_at,
        e.position_rank,
        e.position_id,
        e.number,
        CAST(CASE WHEN s.submission_id IS NULL THEN 1 ELSE 0 END AS bit) AS is_settled
    FROM @given AS g
    INNER JOIN dbo.event_subscriptions AS e WITH (READCOMMITTEDLOCK, INDEX (event_subscriptions_pkey))
        ON g.gateway = e.gateway
    LEFT JOIN dbo.submissions AS s WITH (READCOMMITTEDLOCK, INDEX (submissions_pkey))
        ON e.submission_id = s.submission_id AND s.state NOT IN ('delivered', 'cancelled')
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
END;
