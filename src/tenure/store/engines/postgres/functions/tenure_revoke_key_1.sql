-- Revokes an API key and returns it; returns no row if it does not exist. A key that is revoked already does not
-- change.
--
-- Order: lock the row of the installation, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_revoke_key_1(p_public_id text, p_actor jsonb)
RETURNS SETOF keys
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM tenure_lock_keys_1();
    v_now := tenure_now();
    UPDATE keys k SET revoked_at = v_now WHERE k.public_id = p_public_id AND k.revoked_at IS NULL;
    IF FOUND THEN
        PERFORM tenure_keys_changed_1();
        PERFORM tenure_audit_1(v_now, p_actor, 'key.revoked', p_public_id, NULL, 1);
    END IF;
    RETURN QUERY SELECT k.* FROM keys k WHERE k.public_id = p_public_id;
END
$$;
