-- Acquires the cut lock exclusively: waits for all session writes in progress, and blocks new ones until the
-- transaction ends. It waits 200 ms at most, because new session writes queue behind it meanwhile. After that it raises
-- an error, and the caller retries.
--
-- sp_getapplock returns a negative code instead of raising an error, so this procedure checks the code.
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
