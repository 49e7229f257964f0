-- @at and so many microseconds, which may be less than none. DATEADD takes an int, too small for an hour of them.
CREATE FUNCTION dbo.tenure_later_1(@at datetime2(6), @microseconds bigint) RETURNS datetime2(6)
AS
BEGIN
    DECLARE @seconds bigint = @microseconds / 1000000;
    RETURN DATEADD(
        MICROSECOND,
        @microseconds % 1000000,
        DATEADD(SECOND, @seconds % 86400, DATEADD(DAY, @seconds / 86400, @at))
    );
END;

-- statement-break

-- Undoes the transaction, and ends the batch: nothing that stands after a call of this is carried out.
CREATE PROCEDURE dbo.tenure_lease_lost_1 @name varchar(200), @holder varchar(200), @epoch bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;

    DECLARE @lost nvarchar(2048) = CONCAT(
        N'tenure: ', @holder, N' does not hold the lease ', @name, N' in epoch ', @epoch
    );
    THROW 51001, @lost, 1;
END;

-- statement-break

-- Begins an epoch of a lease whose key the caller has locked, and which is free. Of all leases but job locks, whose runs
-- tell it, the history is kept.
--
-- Here and below, names are compared with columns only, not one variable with another: that would follow the collation of
-- the database, which may take capitals for small letters.
CREATE PROCEDURE dbo.tenure_begin_epoch_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @attempt uniqueidentifier,
    @now datetime2(6),
    @expires_at datetime2(6)
AS
BEGIN
    SET NOCOUNT ON;

    IF LEFT(@name, 4) COLLATE Latin1_General_100_BIN2 <> 'job:'
    BEGIN
        UPDATE h
        SET h.ended_at = l.expires_at, h.how = 'expired'
        FROM dbo.leases AS l
        INNER JOIN dbo.lease_history AS h ON l.name = h.name AND l.epoch = h.epoch
        WHERE l.name = @name AND h.ended_at IS NULL
        OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

        INSERT INTO dbo.lease_history (name, epoch, holder, acquired_at)
        VALUES (@name, @epoch, @holder, @now);
    END;

    UPDATE dbo.leases
    SET
        holder = @holder,
        epoch = @epoch,
        attempt = @attempt,
        acquired_at = @now,
        renewed_at = @now,
        expires_at = @expires_at,
        released = 0,
        resigned = 0
    WHERE name = @name;

    IF @@ROWCOUNT = 0
        INSERT INTO dbo.leases (name, holder, epoch, attempt, acquired_at, renewed_at, expires_at, released, resigned)
        VALUES (@name, @holder, @epoch, @attempt, @now, @now, @expires_at, 0, 0);
END;

-- statement-break

-- Ends an epoch of a lease whose row the caller has locked. Row and epoch stay.
CREATE PROCEDURE dbo.tenure_end_epoch_1 @name varchar(200), @epoch bigint, @how varchar(16), @now datetime2(6)
AS
BEGIN
    SET NOCOUNT ON;

    UPDATE dbo.lease_history
    SET ended_at = @now, how = @how
    WHERE name = @name AND epoch = @epoch AND ended_at IS NULL;

    UPDATE dbo.leases
    SET expires_at = @now, released = 1, resigned = CASE @how WHEN 'resigned' THEN 1 ELSE 0 END
    WHERE name = @name;
END;

-- statement-break

-- The lease as it is now: taken, if it was free or this very attempt took it and the answer was lost. `reclaimed`: its last
-- holder let it run out.
--
-- An update lock is enough for a look, and shows to those who ask in vain what they need without making anybody wait. To
-- begin an epoch takes the row alone: that waits for every write under a fence of the epoch before.
CREATE PROCEDURE dbo.tenure_acquire_lease_1
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
        SET @expires_at = dbo.tenure_later_1(@now, @duration);
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

-- statement-break

-- What an application, too, calls first in a transaction of its own that only the holder may commit. It keeps the row
-- shared until the end of that transaction: whoever wants to begin the next epoch waits for it, others who show a fence do
-- not. A lease that is lost is an error that undoes the transaction, so that nobody can overlook it.
CREATE PROCEDURE dbo.tenure_check_fence_1 @name varchar(200), @holder varchar(200), @epoch bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @expires_at datetime2(6);

    SELECT @expires_at = l.expires_at
    FROM dbo.leases AS l WITH (REPEATABLEREAD, ROWLOCK, INDEX (leases_pkey))
    WHERE l.name = @name AND l.holder = @holder AND l.epoch = @epoch AND l.released = 0;

    -- In a statement of its own: the clock counts after the wait for the lock.
    IF @expires_at IS NULL OR @expires_at <= dbo.tenure_now()
        EXEC dbo.tenure_lease_lost_1 @name = @name, @holder = @holder, @epoch = @epoch;
END;

-- statement-break

-- Takes the row alone, which waits for writes under this lease's fence, and before the clock: what ran out meanwhile is
-- not revived.
CREATE PROCEDURE dbo.tenure_renew_lease_1 @name varchar(200), @holder varchar(200), @epoch bigint, @duration bigint
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

    SET @expires_at = dbo.tenure_later_1(@now, @duration);

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

-- statement-break

-- By its holder. A repetition after a lost answer finds the lease released.
CREATE PROCEDURE dbo.tenure_release_lease_1 @name varchar(200), @holder varchar(200), @epoch bigint
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

-- statement-break

-- On somebody's request, whoever holds it. Nothing comes back of a lease that nobody ever held.
CREATE PROCEDURE dbo.tenure_resign_lease_1 @name varchar(200)
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
        EXEC dbo.tenure_end_epoch_1 @name = @name, @epoch = @epoch, @how = 'resigned', @now = @now;
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
