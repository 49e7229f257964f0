-- Returns the text of a capacity's rules for the audit log. If @when_full is NULL, the capacity has no rules, and the
-- text is `none`.
-- `rules_text` in domain/capacities.py formats rules in the same way.
CREATE OR ALTER FUNCTION dbo.tenure_rules_text_1(
    @max_sessions int, @when_full varchar(16), @tenant_object_id uniqueidentifier
)
RETURNS nvarchar(200)
AS
BEGIN
    RETURN CASE
        WHEN @when_full IS NULL THEN N'none'
        ELSE
            CONCAT(
                N'maxSessions=', COALESCE(CONVERT(nvarchar(11), @max_sessions), N'null'),
                N', whenFull=', @when_full,
                N', tenantObjectId=', COALESCE(LOWER(CONVERT(nvarchar(36), @tenant_object_id)), N'null')
            )
    END;
END;
