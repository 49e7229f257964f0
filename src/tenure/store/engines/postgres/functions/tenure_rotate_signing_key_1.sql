-- Adds a key that signs session tokens. The earlier keys expire after `p_overlap` microseconds, unless they expire
-- before that. If `p_overlap` is NULL, the earlier keys are deleted. If `p_overlap` is not NULL and there are already
-- `p_max` keys that have not expired, the function returns `too-many` and changes nothing. If a key with this id
-- exists, an earlier call has added it, and the function changes nothing.
--
-- The version of the API keys stays the same: from version 1 on, callers need a credential, so a rotation that
-- increased the version would lock everyone out of an installation that has no API key. Instances read the signing keys
-- together with the version.
--
-- Order: lock the row of the installation, look for the key, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_rotate_signing_key_1(
    p_key_id text, p_secret bytea, p_overlap bigint, p_max int, p_actor jsonb, p_detail text)
RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_expires timestamptz;
BEGIN
    PERFORM tenure_lock_keys_1();
    IF EXISTS (SELECT FROM signing_keys s WHERE s.key_id = p_key_id) THEN
        RETURN 'rotated';
    END IF;
    v_now := tenure_now();
    v_expires := v_now + p_overlap * interval '1 microsecond';
    IF p_overlap IS NOT NULL
       AND (SELECT count(*) FROM signing_keys s WHERE s.expires_at IS NULL OR s.expires_at > v_now) >= p_max THEN
        RETURN 'too-many';
    END IF;
    DELETE FROM signing_keys s WHERE p_overlap IS NULL OR s.expires_at <= v_now;
    UPDATE signing_keys s SET expires_at = v_expires WHERE s.expires_at IS NULL OR s.expires_at > v_expires;
    INSERT INTO signing_keys (key_id, secret, created_at) VALUES (p_key_id, p_secret, v_now);
    PERFORM tenure_audit_1(v_now, p_actor, 'signing-key.rotated', p_key_id, p_detail, 1);
    PERFORM pg_notify('tenure.keys', '');
    RETURN 'rotated';
END
$$;
