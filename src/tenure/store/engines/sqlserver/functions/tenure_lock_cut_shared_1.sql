-- Acquires the cut lock in shared mode until the end of the transaction. Every write of sessions acquires it first,
-- before it locks a key or row and before it reads the clock. A cut, or a change of a capacity, acquires the same lock
-- exclusively (tenure_lock_cut_exclusive_1).
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
