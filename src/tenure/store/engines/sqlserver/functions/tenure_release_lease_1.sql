-- Releases a lease for its holder, and returns the lease. If the lease is already released or resigned in this epoch,
-- for example because the answer of an earlier call was lost, the lease is returned unchanged. Raises an error if the
-- lease has expired or belongs to another holder or epoch.
--
-- Order: lock the lease exclusively, read the clock, write.
CREATE OR ALTER PROCEDURE dbo.tenure_release_lease_1 @name varchar(200), @holder varchar(200), @epoch bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @acquired_at datetime2(6),
        @renewed_at datetime2(6),
        @expires_at datetime2(6),
        @released bit,
        @resigned bit,
        @now datetime2(6);

    BEGIN TRANSACTION;

    SELECT
        @acquired_at = l.acquired_at,
        @renewed_at = l.renewed_at,
        @expires_at = l.expires_at,
        @released = l.released,
        @resigned = l.resigned
    FROM dbo.leases AS l WITH (XLOCK, REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey))
    WHERE l.name = @name AND l.holder = @holder AND l.epoch = @epoch;

    SET @now = dbo.tenure_now();

    IF @released IS NULL OR (@released = 0 AND @expires_at <= @now)
        EXEC dbo.tenure_lease_lost_1 @name = @name, @holder = @holder, @epoch = @epoch;

    IF @released = 0
    BEGIN
        SET @expires_at = @now;
        EXEC dbo.tenure_end_epoch_1 @name = @name, @epoch = @epoch, @how = 'released', @now = @now;
    END;
    COMMIT TRANSACTION;

    SELECT
        @now AS now,
        @name AS name,
        @holder AS holder,
        @epoch AS epoch,
        @acquired_at AS acquired_at,
        @renewed_at AS renewed_at,
        @expires_at AS expires_at,
        CAST(1 AS bit) AS released,
        @resigned AS resigned;
END;
