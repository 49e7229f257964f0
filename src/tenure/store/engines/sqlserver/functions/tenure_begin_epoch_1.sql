-- Begins the next epoch of a lease that is free. The caller has locked the row of the lease, or the gap in the index if
-- there is no row. Writes the lease history, except for the locks of jobs: the runs of a job are the history of its
-- lock.
--
-- Here and in the other procedures, a name is compared only with a column, unless the comparison states a collation. A
-- comparison of a variable with another variable or with a literal would use the collation of the database, which may
-- ignore case.
CREATE OR ALTER PROCEDURE dbo.tenure_begin_epoch_1
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
        reclaimed_at = CASE WHEN released = 0 THEN @now ELSE reclaimed_at END,
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
