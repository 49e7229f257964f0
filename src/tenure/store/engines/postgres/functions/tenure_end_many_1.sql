-- Ends, with the reason TERMINATED, the given sessions that are live and match the criteria. An action of a caller may
-- take several calls. The calls share one audit entry, `p_draft`, to which each call adds the number of sessions that
-- it has ended. The first call that ends a session writes the entry. Later calls do not end sessions that started after
-- the instant of the entry, so that the action finishes. A session whose deadline has passed ends at its deadline and
-- for its lapse reason; it does not count, because it had ended before this call.
--
-- `p_criteria` is JSON: {"tenant", "user", "capacity", "kind", "state"}; null means any.
--
-- Each result row except the last is an end that this call recorded. The last row has only `same`, `held` and `total`.
-- `same` is false if the entry belongs to another caller, action or filter; then nothing was changed. `held` counts the
-- sessions that another transaction holds: they may still be live, and the caller retries them. `total` counts the
-- sessions that the action has ended so far. All instances are notified of the ends of sessions that have had a stream.
--
-- Order: acquire the lock of the action (so that its calls run one after the other), read its entry, acquire the cut
-- lock, lock the rows that no other transaction holds, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_end_many_1(p_session uuid[], p_criteria jsonb, p_draft jsonb)
RETURNS TABLE (
    session_id uuid, reason text, ended_at timestamptz, user_object_id uuid, tenant_object_id uuid, capacity_id uuid,
    same boolean, held int, total int)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_entry uuid := (p_draft ->> 'entry')::uuid;
    v_tenant uuid := (p_criteria ->> 'tenant')::uuid;
    v_user uuid := (p_criteria ->> 'user')::uuid;
    v_on_capacity uuid := (p_criteria ->> 'capacity')::uuid;
    v_kind int := (p_criteria ->> 'kind')::int;
    v_state session_state := p_criteria ->> 'state';
    v_began_at timestamptz;
    v_same boolean;
    v_total int;
    v_locked uuid[];
    v_streamed uuid[];
    v_now timestamptz;
    v_ended int;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('tenure action'), hashtext(v_entry::text));
    SELECT a.at, a.changes,
           a.subject = p_draft ->> 'subject' AND a.action = p_draft ->> 'action' AND a.target = p_draft ->> 'target'
           AND a.detail IS NOT DISTINCT FROM p_draft ->> 'detail'
      INTO v_began_at, v_total, v_same
      FROM audit_log a WHERE a.entry_id = v_entry;
    IF NOT v_same THEN
        RETURN QUERY SELECT NULL::uuid, NULL::text, NULL::timestamptz, NULL::uuid, NULL::uuid, NULL::uuid, false, 0, 0;
        RETURN;
    END IF;
    PERFORM tenure_lock_cut_shared_1();
    SELECT coalesce(array_agg(l.session_id), '{}'), array_agg(l.session_id) FILTER (WHERE l.attachment > 0)
      INTO v_locked, v_streamed
      FROM (
        -- plan: lock
        SELECT s.session_id, s.attachment FROM sessions s
         WHERE s.session_id = ANY (p_session) AND s.state IN ('created', 'active')
           AND (s.started_at <= coalesce(v_began_at, s.started_at)
                AND s.tenant_object_id = coalesce(v_tenant, s.tenant_object_id)
                AND s.user_object_id = coalesce(v_user, s.user_object_id)
                AND s.capacity_id = coalesce(v_on_capacity, s.capacity_id)
                AND s.kind = coalesce(v_kind, s.kind) AND s.state = coalesce(v_state, s.state)) IS TRUE
           FOR UPDATE SKIP LOCKED
        -- plan end
      ) AS l;
    v_now := tenure_write_now();
    RETURN QUERY
        -- plan: end
        UPDATE sessions s
           SET state = 'closed', check_at = NULL,
               closed_at = tenure_closed_at_1(s.started_at, s.deadline_at, v_now),
               modified_at = NULL,
               close_reason = CASE WHEN s.deadline_at <= v_now THEN tenure_lapse_text_1(s.lapse_reason)
                                   ELSE 'TERMINATED' END,
               end_entry_id = CASE WHEN s.deadline_at <= v_now THEN NULL ELSE v_entry END
         WHERE s.session_id = ANY (v_locked) AND s.state IN ('created', 'active')
        RETURNING s.session_id, s.close_reason::text, s.closed_at, s.user_object_id, s.tenant_object_id, s.capacity_id,
                  NULL::boolean, NULL::int, NULL::int
        -- plan end
    ;
    SELECT count(*) INTO v_ended FROM (
        -- plan: ended
        SELECT s.session_id FROM sessions s WHERE s.session_id = ANY (v_locked) AND (s.end_entry_id = v_entry) IS TRUE
        -- plan end
    ) AS n;
    IF v_ended > 0 THEN
        PERFORM tenure_audit_1(
            v_now, p_draft, p_draft ->> 'action', p_draft ->> 'target', p_draft ->> 'detail', v_ended);
    END IF;
    IF v_streamed IS NOT NULL THEN
        PERFORM tenure_announce_ends_1(v_streamed);
    END IF;
    RETURN QUERY
        SELECT NULL::uuid, NULL::text, NULL::timestamptz, NULL::uuid, NULL::uuid, NULL::uuid, true, count(*)::int,
               coalesce(v_total, 0) + v_ended
          FROM (
            -- plan: held
            SELECT s.session_id FROM sessions s
             WHERE s.session_id = ANY (p_session) AND s.state IN ('created', 'active')
               AND (s.started_at <= coalesce(v_began_at, s.started_at)
                    AND s.tenant_object_id = coalesce(v_tenant, s.tenant_object_id)
                    AND s.user_object_id = coalesce(v_user, s.user_object_id)
                    AND s.capacity_id = coalesce(v_on_capacity, s.capacity_id)
                    AND s.kind = coalesce(v_kind, s.kind) AND s.state = coalesce(v_state, s.state)) IS TRUE
            -- plan end
          ) AS h;
END
$$;
