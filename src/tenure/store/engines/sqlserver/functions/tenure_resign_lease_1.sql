-- Ends the epoch of a lease on request, writes an audit entry, and returns the lease. The caller need not be the
-- holder. A lease that is not held is returned unchanged. Returns no row for a lease that was never held.
--
-- Order: lock the lease exclusively, read the clock, write.
--
-- @actor: {"entry", "subject", "name", "request"}
CREATE OR ALTER PROCEDURE dbo.tenure_resign_lease_1 @name varchar(200), @actor nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE
        @holder varchar(200),
        @epoch bigint,
        @acquired_at datetime2(6),
        @renewed_at datetime2(6),
        @expires_at datetime2(6),
        @released bit,
        @resigned bit,
        @detail nvarchar(1000),
        @now datetime2(6);

    BEGIN TRANSACTION;

    SELECT
        @holder = l.holder,
        @epoch = l.epoch,
        @acquired_at = l.acquired_at,
        @renewed_at = l.renewed_at,
        @expires_at = l.expires_at,
        @released = l.released,
        @resigned = l.resigned
    FROM dbo.leases AS l WITH (XLOCK, REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey))
    WHERE l.name = @name AND l.epoch > 0;

    SET @now = dbo.tenure_now();

    IF @released = 0 AND @expires_at > @now
    BEGIN
        SET @expires_at = @now;
        SET @released = 1;
        SET @resigned = 1;
        SET @detail = CONCAT(N'holder ', @holder, N', epoch ', @epoch);
        EXEC dbo.tenure_end_epoch_1 @name = @name, @epoch = @epoch, @how = 'resigned', @now = @now;
        EXEC dbo.tenure_audit_1
            @at = @now, @actor = @actor, @action = 'lease.resigned', @target = @name, @detail = @detail, @changes = 1;
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
        @released AS released,
        @resigned AS resigned
    WHERE @epoch IS NOT NULL;
END;
