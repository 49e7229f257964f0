-- The cut lock, exclusive: waits for all session writes under way and keeps new ones waiting until the transaction
-- ends. It waits 200 ms at most, because every session write queues behind it while it waits. The caller retries.
--
-- sp_getapplock does not raise an error, so its code is checked.
CREATE OR ALTER PROCEDURE dbo.tenure_lock_cut_exclusive_1
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @granted int;
    EXEC @granted = sys.sp_getapplock
        @Resource = N'tenure.cut', @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 200;
    IF @granted < 0
        THROW 51222, N'tenure: the cut lock was not granted in time', 1;
END;
