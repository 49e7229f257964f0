-- The clock of a session write: never before the last cut, even if the database's clock was stepped back.
--
-- Call it after the last lock and the last read. An earlier call could lead to sessions that overlap, and to writes
-- whose time belongs to a window that is already cut. It reads the last cut without a lock hint: the caller holds the
-- cut lock shared, and only a holder of the exclusive cut lock changes the last cut.
CREATE OR ALTER FUNCTION dbo.tenure_write_now() RETURNS datetime2(6)
AS
BEGIN
    DECLARE @now datetime2(6) = dbo.tenure_now();
    DECLARE @last_cut_at datetime2(6) = (SELECT i.last_cut_at FROM dbo.installation AS i);
    RETURN CASE WHEN @last_cut_at > @now THEN @last_cut_at ELSE @now END;
END;
