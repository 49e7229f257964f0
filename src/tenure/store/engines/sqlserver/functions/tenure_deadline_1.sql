-- Returns the deadline of a session, and the limit that sets it. The deadline is the earliest of the end of its term,
-- its last heartbeat plus its lease, and its last activity plus its idle limit. If several limits fall on the same
-- instant, the first of term, lease and idle limit is returned. A limit that is NULL does not count. `earliest` in
-- deadlines.py computes the same.
--
-- This is an inline table-valued function, which SQL Server expands into the calling statement. It does not use
-- tenure_add_microseconds_1, which SQL Server would call once per row. It adds a limit with two calls of DATEADD, one
-- for the seconds and one for the microseconds: DATEADD takes an int, and 30 days of microseconds exceed an int.
CREATE OR ALTER FUNCTION dbo.tenure_deadline_1(
    @term_ends_at datetime2(6),
    @last_heartbeat_at datetime2(6),
    @lease bigint,
    @last_activity_at datetime2(6),
    @idle bigint
)
RETURNS TABLE
AS
RETURN
SELECT
    r.lapse_reason,
    CASE r.lapse_reason
        WHEN 'LEASE_EXPIRED' THEN e.lease_ends_at
        WHEN 'IDLE_TIMEOUT' THEN e.idle_ends_at
        ELSE @term_ends_at
    END AS deadline_at
FROM (
    SELECT
        DATEADD(MICROSECOND, @lease % 1000000, DATEADD(SECOND, @lease / 1000000, @last_heartbeat_at)) AS lease_ends_at,
        DATEADD(MICROSECOND, @idle % 1000000, DATEADD(SECOND, @idle / 1000000, @last_activity_at)) AS idle_ends_at
) AS e
CROSS APPLY (
    SELECT
        CASE
            WHEN
                e.lease_ends_at < @term_ends_at AND (e.idle_ends_at IS NULL OR e.lease_ends_at <= e.idle_ends_at)
                THEN 'LEASE_EXPIRED'
            WHEN e.idle_ends_at < @term_ends_at THEN 'IDLE_TIMEOUT'
            ELSE 'EXPIRED'
        END AS lapse_reason
) AS r;
