-- Acquires a lease if it is free, and returns its current row. `taken` is 1 if this call acquired the lease, or if an
-- earlier call with the same @attempt acquired it and the response was lost. `reclaimed` means that this call acquired
-- the lease after the last holder let it expire instead of releasing it.
--
-- Order: lock the lease with an update lock (which does not wait for fenced writes), read the clock. If the lease is
-- free: lock the row exclusively (which waits for all fenced writes of the last epoch), read the clock again, write.
CREATE OR ALTER PROCEDURE dbo.tenure_acquire_lease_1
    @name varchar(200),
    @holder varchar(200),
    @attempt uniqueidentifier,
    @duration bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @held_by varchar(200),
        @epoch bigint,
        @taken_by uniqueidentifier,
        @acquired_at datetime2(6),
        @renewed_at datetime2(6),
        @expires_at datetime2(6),
        @released bit,
        @resigned bit,
        @now datetime2(6),
        @taken bit = 0,
        @reclaimed bit = 0;

    BEGIN TRANSACTION;

    SELECT
        @held_by = l.holder,
        @epoch = l.epoch,
        @taken_by = l.attempt,
        @acquired_at = l.acquired_at,
        @renewed_at = l.renewed_at,
        @expires_at = l.expires_at,
        @released = l.released,
        @resigned = l.resigned
    FROM dbo.leases AS l WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (leases_pkey))
    WHERE l.name = @name;

    SET @now = dbo.tenure_now();

    IF @epoch IS NOT NULL AND @released = 0 AND @expires_at > @now
        SET @taken = CASE WHEN @taken_by = @attempt THEN 1 ELSE 0 END;
    ELSE
    BEGIN
        SELECT @epoch = l.epoch
        FROM dbo.leases AS l WITH (XLOCK, REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey))
        WHERE l.name = @name;

        SET @now = dbo.tenure_now();
        SET @reclaimed = CASE WHEN @released = 0 THEN 1 ELSE 0 END;
        SET @taken = 1;
        SET @held_by = @holder;
        SET @epoch = COALESCE(@epoch, 0) + 1;
        SET @acquired_at = @now;
        SET @renewed_at = @now;
        SET @expires_at = dbo.tenure_add_microseconds_1(@now, @duration);
        SET @released = 0;
        SET @resigned = 0;
        EXEC dbo.tenure_begin_epoch_1
            @name = @name,
            @holder = @holder,
            @epoch = @epoch,
            @attempt = @attempt,
            @now = @now,
            @expires_at = @expires_at;
    END;
    COMMIT TRANSACTION;

    SELECT
        @taken AS taken,
        @reclaimed AS reclaimed,
        @now AS now,
        @name AS name,
        @held_by AS holder,
        @epoch AS epoch,
        @acquired_at AS acquired_at,
        @renewed_at AS renewed_at,
        @expires_at AS expires_at,
        @released AS released,
        @resigned AS resigned;
END;
