-- Returns the given session ids. If the caller who sent an id is bound to a tenant or user, and the session does not
-- exist or belongs to another tenant or user, the function returns NULL in place of the id. So the calling function
-- treats a foreign session like an unknown one, and does not lock its row. `p_tenant` and `p_user` have one entry per
-- session, which is NULL for a caller who sees all tenants or users.
--
-- The tenant and the user of a session never change, so they are read without a lock.
CREATE OR REPLACE FUNCTION tenure_in_scope_1(p_session uuid[], p_tenant uuid[], p_user uuid[]) RETURNS uuid[]
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN ARRAY(
        -- plan: scope
        SELECT CASE WHEN (b.tenant IS NULL OR b.tenant = s.tenant_object_id)
                     AND (b.owner IS NULL OR b.owner = s.user_object_id) THEN b.session_id END
          FROM unnest(p_session, p_tenant, p_user) WITH ORDINALITY AS b(session_id, tenant, owner, position)
          LEFT JOIN sessions s ON s.session_id = b.session_id
         ORDER BY b.position
        -- plan end
    );
END
$$;
