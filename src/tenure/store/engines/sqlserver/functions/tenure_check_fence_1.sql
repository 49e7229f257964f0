-- Checks a fence: raises an error and rolls back the transaction unless this holder holds the lease in this epoch.
-- Fenced writes call this procedure first. An application may call it in its own transactions.
--
-- The procedure keeps a shared lock on the row until the transaction ends. Fenced writes do not wait for each other. A
-- transaction that begins or ends an epoch, or renews the lease, waits for all fenced writes.
CREATE OR ALTER PROCEDURE dbo.tenure_check_fence_1 @name varchar(200), @holder varchar(200), @epoch bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @expires_at datetime2(6);

    SELECT @expires_at = l.expires_at
    FROM dbo.leases AS l WITH (REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey))
    WHERE l.name = @name AND l.holder = @holder AND l.epoch = @epoch AND l.released = 0;

    -- This is a separate statement, so that the clock is read after the wait for the lock.
    IF @expires_at IS NULL OR @expires_at <= dbo.tenure_now()
        EXEC dbo.tenure_lease_lost_1 @name = @name, @holder = @holder, @epoch = @epoch;
END;
