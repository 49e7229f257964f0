-- The clock of a session write: never before the last cut, even if the database's clock was stepped back.
--
-- Call it after the last lock and the last read. Called earlier, it gives sessions that overlap and writes that belong
-- to a window which is already cut. The last cut is read without a hint: a transaction that changes it holds the cut
-- lock exclusively, and the caller of this holds it shared.
CREATE OR ALTER FUNCTION dbo.tenure_write_now() RETURNS datetime2(6)
AS
BEGIN
    DECLARE @now datetime2(6) = dbo.tenure_now();
    DECLARE @last_cut_at datetime2(6) = (SELECT i.last_cut_at FROM dbo.installation AS i);
    RETURN CASE WHEN @last_cut_at > @now THEN @last_cut_at ELSE @now END;
END;
