-- Performs the first step of a resignation, in its own transaction. After this step, every write with the fence of the
-- current epoch is refused. Without this step, tenure_resign_lease_1, which waits for all fenced writes, could wait
-- indefinitely, because new fenced writes could begin before the earlier ones end. This step writes the audit entry,
-- because the holder has lost the lease after it, even if the second step fails.
CREATE OR REPLACE FUNCTION tenure_mark_resigned_1(p_name text, p_actor jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_lease leases;
BEGIN
    UPDATE leases l SET resigned = true
     WHERE l.name = p_name AND NOT l.released AND NOT l.resigned AND l.expires_at > tenure_now()
    RETURNING * INTO v_lease;
    IF FOUND THEN
        PERFORM tenure_audit_1(
            tenure_now(), p_actor, 'lease.resigned', p_name,
            format('holder %s, epoch %s', v_lease.holder, v_lease.epoch), 1);
    END IF;
END
$$;
