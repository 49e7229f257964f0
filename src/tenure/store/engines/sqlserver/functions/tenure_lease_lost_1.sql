-- Raises the error that every fenced call raises when the fence does not hold. It undoes the transaction and ends the
-- batch: nothing after a call of this is carried out.
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
