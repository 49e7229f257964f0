-- Returns the timestamp for a session write: the current time, but never before the last cut, and always after the
-- horizon of events, even if the database's clock was stepped back.
--
-- A write calls this function after it has taken its locks and read its rows. If the write called the function earlier,
-- sessions could overlap, and the timestamp could be before the last cut or before the horizon. The function reads the
-- last cut and the horizon without a lock hint: the caller holds the cut lock, and only a transaction that holds the
-- cut lock exclusively changes these two values.
CREATE OR ALTER FUNCTION dbo.tenure_write_now() RETURNS datetime2(6)
AS
BEGIN
    DECLARE
        @now datetime2(6) = dbo.tenure_now(),
        @last_cut_at datetime2(6),
        @after_horizon datetime2(6);

    SELECT @last_cut_at = i.last_cut_at, @after_horizon = DATEADD(MICROSECOND, 1, i.stamped_after)
    FROM dbo.installation AS i;

    IF @last_cut_at > @now
        SET @now = @last_cut_at;
    IF @after_horizon > @now
        SET @now = @after_horizon;
    RETURN @now;
END;
