-- Creates an API key and returns it. The other live keys with this name then expire at `p_others_expire`, unless they
-- expire earlier. If `p_others_expire` is NULL, they do not change.
--
-- If a key with this public id already exists, the function changes nothing and returns the existing key. If the
-- existing key has the digest `p_digest`, an earlier call created it; the caller checks this. If there is no such key,
-- but the name already has `p_live_max` live keys, the function changes nothing and returns no row.
--
-- Order: lock the row of the installation, look for the key, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_create_key_1(
    p_public_id text, p_name text, p_role text, p_tenant uuid, p_digest bytea, p_expires timestamptz,
    p_others_expire timestamptz, p_live_max int, p_actor jsonb, p_detail text)
RETURNS SETOF keys
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_live text[];
BEGIN
    PERFORM tenure_lock_keys_1();
    IF NOT EXISTS (SELECT FROM keys k WHERE k.public_id = p_public_id) THEN
        v_now := tenure_now();
        v_live := ARRAY(
            SELECT k.public_id FROM keys k
             WHERE k.name = p_name AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > v_now));
        IF cardinality(v_live) < p_live_max THEN
            UPDATE keys k SET expires_at = p_others_expire
             WHERE k.public_id = ANY (v_live) AND (k.expires_at IS NULL OR k.expires_at > p_others_expire)
               AND p_others_expire IS NOT NULL;
            INSERT INTO keys (public_id, name, role, tenant_object_id, digest, created_at, created_by, expires_at)
            VALUES (p_public_id, p_name, p_role, p_tenant, p_digest, v_now, p_actor ->> 'subject', p_expires);
            PERFORM tenure_keys_changed_1();
            PERFORM tenure_audit_1(v_now, p_actor, 'key.created', p_public_id, p_detail, 1);
        END IF;
    END IF;
    RETURN QUERY SELECT k.* FROM keys k WHERE k.public_id = p_public_id;
END
$$;
