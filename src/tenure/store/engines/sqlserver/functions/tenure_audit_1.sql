-- Writes one entry of the audit log, in the transaction of the caller. Call it only if something has changed. @actor is
-- the actor as JSON, with the id of the entry: {"entry", "subject", "name", "request"}. If an earlier transaction of
-- the same request has written the entry, adds @changes to its number of changes.
CREATE OR ALTER PROCEDURE dbo.tenure_audit_1
    @at datetime2(6),
    @actor nvarchar(MAX),
    @action varchar(32),
    @target varchar(200),
    @detail nvarchar(1000),
    @changes int
AS
BEGIN
    SET NOCOUNT ON;

    UPDATE dbo.audit_log
    SET changes = changes + @changes
    WHERE entry_id = JSON_VALUE(@actor, '$.entry');

    IF @@ROWCOUNT = 0
        INSERT INTO dbo.audit_log (entry_id, at, subject, name, action, target, detail, request_id, changes)
        VALUES (
            JSON_VALUE(@actor, '$.entry'), @at, JSON_VALUE(@actor, '$.subject'), JSON_VALUE(@actor, '$.name'), @action,
            @target, @detail, JSON_VALUE(@actor, '$.request'), @changes
        );
END;
