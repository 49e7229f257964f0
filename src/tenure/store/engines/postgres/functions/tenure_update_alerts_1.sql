-- Raises an alert for each condition that has no active alert, and clears the active alerts without a condition, under
-- the fence of job `watch`. A condition is a pair of `p_alert` (the name) and `p_subject`. If `p_contract` is not NULL,
-- the function inserts a submission to gateway `oncall` for each change, taking the next id from `p_submission`.
-- Returns the active alerts that were raised in this epoch and the alerts that were cleared in this epoch within the
-- last hour. The result includes the alerts that an earlier call of this epoch changed, because the answer of that call
-- may have been lost.
--
-- Order: check the fence (which locks the lease), lock the active alerts, read the clock, write. Only the holder of the
-- lease adds alerts, so no alert is added between the lock and the write.
CREATE OR REPLACE FUNCTION tenure_update_alerts_1(
    p_name text, p_holder text, p_epoch bigint, p_id uuid[], p_alert text[], p_subject text[], p_detail text[],
    p_contract text, p_submission uuid[])
RETURNS SETOF alerts
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    PERFORM 1 FROM alerts a WHERE a.cleared_at IS NULL ORDER BY a.name, a.subject FOR UPDATE;
    v_now := tenure_now();
    WITH raised AS (
        INSERT INTO alerts (alert_id, name, subject, detail, raised_at, raised_epoch)
        SELECT c.alert_id, c.name, c.subject, c.detail, v_now, p_epoch
          FROM unnest(p_id, p_alert, p_subject, p_detail) AS c(alert_id, name, subject, detail)
        ON CONFLICT (name, subject) WHERE cleared_at IS NULL DO NOTHING
        RETURNING alert_id, 'raised' AS transition
    ), cleared AS (
        UPDATE alerts a SET cleared_at = v_now, cleared_epoch = p_epoch
         WHERE a.cleared_at IS NULL
           AND NOT EXISTS (SELECT FROM unnest(p_alert, p_subject) AS c(name, subject)
                            WHERE c.name = a.name AND c.subject = a.subject)
        RETURNING a.alert_id, 'cleared' AS transition
    ), changed AS (
        SELECT c.alert_id, c.transition, row_number() OVER (ORDER BY c.transition DESC, c.alert_id) AS position
          FROM (SELECT * FROM raised UNION ALL SELECT * FROM cleared) c
    )
    INSERT INTO submissions (
        submission_id, gateway, caller, idempotency_key, delivery_key, digest, contract, state, attempts, failures,
        next_attempt_at, created_at, last_modified_at)
    SELECT p_submission[c.position], 'oncall', 'tenure', k.key, k.key, '', p_contract, 'pending', 0, 0,
           v_now, v_now, v_now
      FROM changed c, LATERAL (SELECT c.alert_id || '-' || c.transition AS key) k
     WHERE p_contract IS NOT NULL;
    RETURN QUERY SELECT a.* FROM alerts a WHERE a.cleared_at IS NULL AND a.raised_epoch = p_epoch;
    RETURN QUERY SELECT a.* FROM alerts a WHERE a.cleared_at >= v_now - interval '1 hour' AND a.cleared_epoch = p_epoch;
END
$$;
