-- Ends the epoch of a lease now, as `released` or `resigned` (@how). The caller has locked the row of the lease. The
-- row stays and keeps its epoch.
CREATE OR ALTER PROCEDURE dbo.tenure_end_epoch_1 @name varchar(200), @epoch bigint, @how varchar(16), @now datetime2(6)
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
