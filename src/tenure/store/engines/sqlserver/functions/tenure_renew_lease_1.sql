-- Renews a lease for its holder, and returns the lease. Raises an error if @holder no longer holds the lease in @epoch,
-- or if the lease has expired.
--
-- Order: lock the lease exclusively (which waits for writes under its fence), read the clock, write. The clock is read
-- after the wait, so that a lease that expired during the wait is not renewed.
CREATE OR ALTER PROCEDURE dbo.tenure_renew_lease_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @duration bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @acquired_at datetime2(6), @expires_at datetime2(6), @now datetime2(6);

    BEGIN TRANSACTION;

    SELECT @acquired_at = l.acquired_at, @expires_at = l.expires_at
    FROM dbo.leases AS l WITH (XLOCK, REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey))
    WHERE l.name = @name AND l.holder = @holder AND l.epoch = @epoch AND l.released = 0;

    SET @now = dbo.tenure_now();

    IF @expires_at IS NULL OR @expires_at <= @now
        EXEC dbo.tenure_lease_lost_1 @name = @name, @holder = @holder, @epoch = @epoch;

    SET @expires_at = dbo.tenure_add_microseconds_1(@now, @duration);

    UPDATE dbo.leases
    SET renewed_at = @now, expires_at = @expires_at
    WHERE name = @name;
    COMMIT TRANSACTION;

    SELECT
        @now AS now,
        @name AS name,
        @holder AS holder,
        @epoch AS epoch,
        @acquired_at AS acquired_at,
        @now AS renewed_at,
        @expires_at AS expires_at,
        CAST(0 AS bit) AS released,
        CAST(0 AS bit) AS resigned;
END;
