-- Cuts windows up to the last tick at or before now, under the fence of job `emit-usage`. Every session write holds the
-- cut lock (shared) until it commits. So under the exclusive lock, no session write is in progress: all writes with a
-- timestamp before the cut are committed, and later writes get a timestamp at the cut or after it, because
-- tenure_write_now() returns no instant before the last cut. The procedure waits 200 ms at most for the exclusive lock;
-- the caller retries.
--
-- No window crosses a UTC midnight. So after a pause the procedure may cut several windows, at most @limit per call. It
-- cuts nothing if the clock has not reached the next tick, or was stepped back behind the last cut. Changed factors
-- begin a new era.
--
-- Order: check the fence (which locks the lease), acquire the cut lock exclusively, read the clock, write.
--
-- @request: {"interval", "factors": [of kind 1, of kind 2, of kind 3], "contract"}, without a contract if there is no
--            gateway for usage.
CREATE OR ALTER PROCEDURE dbo.tenure_cut_usage_1
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
    EXEC dbo.tenure_lock_cut_exclusive_1;

    SET @now = dbo.tenure_now();
    SET @grid = dbo.tenure_grid_at_1(@interval, @now);

    -- No lock hint is needed, here and for the eras below: only a holder of the exclusive cut lock changes the values
    -- that are read.
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
