-- Records the last use of API keys. A last use never becomes earlier. Instances only estimate the time of a use, so a
-- time in the future is stored as now. The version of the keys stays the same, because instances do not cache the last
-- use. The function skips keys that other transactions hold, so that it never waits while it holds a key. The next use
-- of such a key is recorded by a later call.
CREATE OR REPLACE FUNCTION tenure_touch_keys_1(p_public_id text[], p_used timestamptz[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_free text[];
    v_now timestamptz;
BEGIN
    v_free := ARRAY(
        SELECT k.public_id FROM keys k
         WHERE k.public_id = ANY (p_public_id) ORDER BY k.public_id FOR NO KEY UPDATE SKIP LOCKED);
    v_now := tenure_now();
    UPDATE keys k SET last_used_at = least(u.used, v_now)
      FROM unnest(p_public_id, p_used) AS u (public_id, used)
     WHERE k.public_id = u.public_id AND k.public_id = ANY (v_free)
       AND (k.last_used_at IS NULL OR k.last_used_at < least(u.used, v_now));
END
$$;
