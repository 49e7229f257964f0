-- Writes one entry of the audit log, in the transaction of the caller. Call it only if something has changed. @actor is
-- the actor as JSON, with the id of the entry: {"entry", "subject", "name", "request"}.
CREATE OR ALTER PROCEDURE dbo.tenure_audit_1
    @at datetime2(6),
    @actor nvarchar(MAX),
    @action varchar(32),
    @target varchar(200),
    @detail nvarchar(1000)
AS
BEGIN
    SET NOCOUNT ON;

    INSERT INTO dbo.audit_log (entry_id, at, subject, name, action, target, detail, request_id)
    VALUES (
        JSON_VALUE(@actor, '$.entry'), @at, JSON_VALUE(@actor, '$.subject'), JSON_VALUE(@actor, '$.name'), @action,
        @target, @detail, JSON_VALUE(@actor, '$.request')
    );
END;
