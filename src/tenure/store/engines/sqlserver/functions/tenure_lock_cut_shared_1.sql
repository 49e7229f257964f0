-- Acquires the cut lock in shared mode until the end of the transaction. Every procedure that opens, renews or ends
-- sessions acquires the cut lock before it locks the key or row of a session and before it reads the clock for a write.
-- A cut, an import, a change of a capacity and tenure_publish_events_1 acquire it exclusively
-- (tenure_lock_cut_exclusive_1).
--
-- sp_getapplock returns a negative code instead of raising an error. Without the check of this code, a write would
-- continue without the lock.
CREATE OR ALTER PROCEDURE dbo.tenure_lock_cut_shared_1
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE @granted int;
    EXEC @granted = sys.sp_getapplock
        @Resource = N'tenure.cut', @LockMode = 'Shared', @LockOwner = 'Transaction', @LockTimeout = 1000;
    IF @granted < 0
        THROW 51222, N'tenure: the cut lock was not granted in time', 1;
END;
