-- The cut lock, shared, until the end of the transaction. Every session write takes it, before any key or row and
-- before it reads the clock. A cut, or a change of a capacity, takes it exclusively: tenure_lock_cut_exclusive_1.
--
-- sp_getapplock does not raise an error: a write that does not check its code goes on without the lock.
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
