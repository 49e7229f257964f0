-- Raises the error that fenced calls return if @holder no longer holds the lease in @epoch. Unless the caller catches
-- the error, it rolls back the transaction and ends the T-SQL batch: no later statement of the caller is executed.
CREATE OR ALTER PROCEDURE dbo.tenure_lease_lost_1 @name varchar(200), @holder varchar(200), @epoch bigint
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;

    DECLARE @lost nvarchar(2048) = CONCAT(
        N'tenure: ', @holder, N' does not hold the lease ', @name, N' in epoch ', @epoch
    );
    THROW 51001, @lost, 1;
END;
