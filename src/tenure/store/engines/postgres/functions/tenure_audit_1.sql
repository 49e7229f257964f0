-- Writes one entry of the audit log, in the transaction of the change. Call it only if something has changed. `p_actor`
-- is the actor as JSON, with the id of the entry: {"entry", "subject", "name", "request"}. If an earlier transaction of
-- the same request or action has already written the entry, the function only adds `p_changes` to its column `changes`.
CREATE OR REPLACE FUNCTION tenure_audit_1(
    p_at timestamptz, p_actor jsonb, p_action text, p_target text, p_detail text, p_changes int)
RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO audit_log (entry_id, at, subject, name, action, target, detail, request_id, changes)
    VALUES ((p_actor ->> 'entry')::uuid, p_at, p_actor ->> 'subject', p_actor ->> 'name', p_action, p_target, p_detail,
            p_actor ->> 'request', p_changes)
    ON CONFLICT (entry_id) DO UPDATE SET changes = audit_log.changes + excluded.changes;
$$;
