-- Acquires the lock of an action until the transaction ends, so that two transactions of one action never run at the
-- same time. Then reads the audit entry of the action. Returns when the action began, how many sessions it has ended,
-- and whether subject, action, target and detail of the entry are those of @draft. If there is no entry, the action has
-- not ended a session yet, and the procedure returns NULL, 0 and 1. @draft is the entry as JSON: {"entry", "subject",
-- "action", "target", "detail"}.
--
-- sp_getapplock returns a negative code instead of raising an error. Without the check of this code, the transaction
-- would continue without the lock.
CREATE OR ALTER PROCEDURE dbo.tenure_join_action_1
    @draft nvarchar(MAX),
    @began_at datetime2(6) OUTPUT,
    @total int OUTPUT,
    @same bit OUTPUT
AS
BEGIN
    SET NOCOUNT ON;
    DECLARE
        @granted int,
        @resource nvarchar(255) = CONCAT(N'tenure.action.', JSON_VALUE(@draft, '$.entry')),
        @detail nvarchar(1000) = JSON_VALUE(@draft, '$.detail');
    EXEC @granted = sys.sp_getapplock
        @Resource = @resource, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 1000;
    IF @granted < 0
        THROW 51222, N'tenure: the lock of the action was not granted in time', 1;

    SELECT @began_at = NULL, @total = 0, @same = 1;
    SELECT
        @began_at = a.at,
        @total = a.changes,
        @same = CASE
            WHEN
                a.subject = JSON_VALUE(@draft, '$.subject') AND a.action = JSON_VALUE(@draft, '$.action')
                AND a.target = JSON_VALUE(@draft, '$.target')
                AND (a.detail = @detail OR (a.detail IS NULL AND @detail IS NULL)) THEN 1
            ELSE 0
        END
    FROM dbo.audit_log AS a WITH (READCOMMITTEDLOCK, INDEX (audit_log_pkey))
    WHERE a.entry_id = JSON_VALUE(@draft, '$.entry');
END;
