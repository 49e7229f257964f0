-- Saves the counts that an instance has made in one or more minutes. Each count is the total of its minute so far, so the
-- greater of two counts is the newer one, and neither a repeated call nor an earlier call that arrives late changes
-- anything. The procedure reads no clock: the minutes are in the request. `turn` is the number of times that the
-- instance has seen the clock step back to an earlier minute, so the counts of a repeated minute go to another row.
--
-- @request: [[position, minute, turn, count, …], …]
CREATE OR ALTER PROCEDURE dbo.tenure_save_activity_1
    @instance varchar(200),
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @saved int;
    DECLARE @given TABLE (
        at datetime2(6) NOT NULL,
        turn int NOT NULL,
        opened int NOT NULL,
        upgraded int NOT NULL,
        existing int NOT NULL,
        refused int NOT NULL,
        heartbeats int NOT NULL,
        late_heartbeats int NOT NULL,
        closed_upgraded int NOT NULL,
        closed_expired int NOT NULL,
        closed_lease_expired int NOT NULL,
        closed_idle_timeout int NOT NULL,
        closed_stopped int NOT NULL,
        closed_terminated int NOT NULL,
        closed_evicted int NOT NULL,
        closed_disconnected int NOT NULL,
        closed_shutdown int NOT NULL,
        closed_failed int NOT NULL,
        PRIMARY KEY (at, turn)
    );
    DECLARE @known TABLE (
        at datetime2(6) NOT NULL,
        turn int NOT NULL,
        PRIMARY KEY (at, turn)
    );

    INSERT INTO @given (
        at,
        turn,
        opened,
        upgraded,
        existing,
        refused,
        heartbeats,
        late_heartbeats,
        closed_upgraded,
        closed_expired,
        closed_lease_expired,
        closed_idle_timeout,
        closed_stopped,
        closed_terminated,
        closed_evicted,
        closed_disconnected,
        closed_shutdown,
        closed_failed
    )
    SELECT
        r.at,
        r.turn,
        r.opened,
        r.upgraded,
        r.existing,
        r.refused,
        r.heartbeats,
        r.late_heartbeats,
        r.closed_upgraded,
        r.closed_expired,
        r.closed_lease_expired,
        r.closed_idle_timeout,
        r.closed_stopped,
        r.closed_terminated,
        r.closed_evicted,
        r.closed_disconnected,
        r.closed_shutdown,
        r.closed_failed
    FROM OPENJSON(@request) WITH (
        at datetime2(6) '$[1]',
        turn int '$[2]',
        opened int '$[3]',
        upgraded int '$[4]',
        existing int '$[5]',
        refused int '$[6]',
        heartbeats int '$[7]',
        late_heartbeats int '$[8]',
        closed_upgraded int '$[9]',
        closed_expired int '$[10]',
        closed_lease_expired int '$[11]',
        closed_idle_timeout int '$[12]',
        closed_stopped int '$[13]',
        closed_terminated int '$[14]',
        closed_evicted int '$[15]',
        closed_disconnected int '$[16]',
        closed_shutdown int '$[17]',
        closed_failed int '$[18]'
    ) AS r;

    BEGIN TRANSACTION;

    -- Lock the keys, including those without a row, in the order of their index. Without TOP the ORDER BY would be
    -- ignored.
    INSERT INTO @known (at, turn)
    SELECT TOP (1000) a.at, a.turn
    FROM @given AS g
    INNER JOIN dbo.activity AS a WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (activity_pkey))
        ON g.at = a.at AND a.instance = @instance AND g.turn = a.turn
    ORDER BY g.at, g.turn
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE a
    SET
        a.opened = CASE WHEN g.opened > a.opened THEN g.opened ELSE a.opened END,
        a.upgraded = CASE WHEN g.upgraded > a.upgraded THEN g.upgraded ELSE a.upgraded END,
        a.existing = CASE WHEN g.existing > a.existing THEN g.existing ELSE a.existing END,
        a.refused = CASE WHEN g.refused > a.refused THEN g.refused ELSE a.refused END,
        a.heartbeats = CASE WHEN g.heartbeats > a.heartbeats THEN g.heartbeats ELSE a.heartbeats END,
        a.late_heartbeats = CASE WHEN g.late_heartbeats > a.late_heartbeats THEN g.late_heartbeats ELSE a.late_heartbeats END,
        a.closed_upgraded = CASE WHEN g.closed_upgraded > a.closed_upgraded THEN g.closed_upgraded ELSE a.closed_upgraded END,
        a.closed_expired = CASE WHEN g.closed_expired > a.closed_expired THEN g.closed_expired ELSE a.closed_expired END,
        a.closed_lease_expired = CASE WHEN g.closed_lease_expired > a.closed_lease_expired THEN g.closed_lease_expired ELSE a.closed_lease_expired END,
        a.closed_idle_timeout = CASE WHEN g.closed_idle_timeout > a.closed_idle_timeout THEN g.closed_idle_timeout ELSE a.closed_idle_timeout END,
        a.closed_stopped = CASE WHEN g.closed_stopped > a.closed_stopped THEN g.closed_stopped ELSE a.closed_stopped END,
        a.closed_terminated = CASE WHEN g.closed_terminated > a.closed_terminated THEN g.closed_terminated ELSE a.closed_terminated END,
        a.closed_evicted = CASE WHEN g.closed_evicted > a.closed_evicted THEN g.closed_evicted ELSE a.closed_evicted END,
        a.closed_disconnected = CASE WHEN g.closed_disconnected > a.closed_disconnected THEN g.closed_disconnected ELSE a.closed_disconnected END,
        a.closed_shutdown = CASE WHEN g.closed_shutdown > a.closed_shutdown THEN g.closed_shutdown ELSE a.closed_shutdown END,
        a.closed_failed = CASE WHEN g.closed_failed > a.closed_failed THEN g.closed_failed ELSE a.closed_failed END
    FROM @given AS g
    INNER JOIN dbo.activity AS a ON g.at = a.at AND a.instance = @instance AND g.turn = a.turn
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @saved = @@ROWCOUNT;

    INSERT INTO dbo.activity (
        at,
        instance,
        turn,
        opened,
        upgraded,
        existing,
        refused,
        heartbeats,
        late_heartbeats,
        closed_upgraded,
        closed_expired,
        closed_lease_expired,
        closed_idle_timeout,
        closed_stopped,
        closed_terminated,
        closed_evicted,
        closed_disconnected,
        closed_shutdown,
        closed_failed
    )
    SELECT
        g.at,
        @instance,
        g.turn,
        g.opened,
        g.upgraded,
        g.existing,
        g.refused,
        g.heartbeats,
        g.late_heartbeats,
        g.closed_upgraded,
        g.closed_expired,
        g.closed_lease_expired,
        g.closed_idle_timeout,
        g.closed_stopped,
        g.closed_terminated,
        g.closed_evicted,
        g.closed_disconnected,
        g.closed_shutdown,
        g.closed_failed
    FROM @given AS g
    WHERE NOT EXISTS (SELECT 1 FROM @known AS k WHERE k.at = g.at AND k.turn = g.turn);
    SET @saved = @saved + @@ROWCOUNT;

    COMMIT TRANSACTION;

    SELECT @saved AS saved;
END;
