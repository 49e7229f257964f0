-- Deletes rows past their retention time, at most `p_limit` of each kind, under the fence of job `prune`: lease
-- history, ended job runs, delivered or cancelled submissions (with their attempts and event batches), entries of the
-- audit log, cleared alerts, instances that were not seen for their retention time, and minutes of activity.
-- `p_history`, `p_runs`, `p_submissions`, `p_audit`, `p_alerts`, `p_instances` and `p_activity` are the retention times
-- in microseconds. Returns the number of deleted rows of each kind, without attempts and event batches. A submission or
-- instance whose row another transaction holds is left for a later call.
CREATE OR REPLACE FUNCTION tenure_prune_1(
    p_name text, p_holder text, p_epoch bigint, p_limit int, p_history bigint, p_runs bigint, p_submissions bigint,
    p_audit bigint, p_alerts bigint, p_instances bigint, p_activity bigint)
RETURNS TABLE (
    lease_history int, job_runs int, submissions int, audit_log int, alerts int, instances int, activity int)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_old uuid[];
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    v_now := tenure_now();
    DELETE FROM lease_history d
     WHERE (d.name, d.epoch) IN (
        SELECT h.name, h.epoch FROM lease_history h
         WHERE h.ended_at < v_now - p_history * interval '1 microsecond' LIMIT p_limit);
    GET DIAGNOSTICS lease_history = ROW_COUNT;
    DELETE FROM job_runs d
     WHERE (d.job, d.epoch) IN (
        SELECT r.job, r.epoch FROM job_runs r
         WHERE r.started_at < v_now - p_runs * interval '1 microsecond' AND r.ended_at IS NOT NULL
         ORDER BY r.started_at LIMIT p_limit);
    GET DIAGNOSTICS job_runs = ROW_COUNT;
    v_old := ARRAY(
        -- plan: old
        SELECT s.submission_id FROM submissions s
         WHERE s.state IN ('delivered', 'cancelled') AND s.ended_at < v_now - p_submissions * interval '1 microsecond'
         ORDER BY s.ended_at LIMIT p_limit FOR UPDATE SKIP LOCKED
        -- plan end
    );
    DELETE FROM submission_attempts a WHERE a.submission_id = ANY (v_old);
    DELETE FROM event_batches b WHERE b.submission_id = ANY (v_old);
    DELETE FROM submissions s WHERE s.submission_id = ANY (v_old);
    submissions := cardinality(v_old);
    DELETE FROM audit_log d
     WHERE d.entry_id IN (
        -- plan: old entries
        SELECT l.entry_id FROM audit_log l
         WHERE l.at < v_now - p_audit * interval '1 microsecond'
         ORDER BY l.at, l.entry_id LIMIT p_limit
        -- plan end
        );
    GET DIAGNOSTICS audit_log = ROW_COUNT;
    DELETE FROM alerts d
     WHERE d.alert_id IN (
        -- plan: old alerts
        SELECT a.alert_id FROM alerts a
         WHERE a.cleared_at < v_now - p_alerts * interval '1 microsecond'
         ORDER BY a.cleared_at LIMIT p_limit
        -- plan end
        );
    GET DIAGNOSTICS alerts = ROW_COUNT;
    DELETE FROM instances d
     WHERE d.instance IN (
        SELECT i.instance FROM instances i
         WHERE i.last_seen_at < v_now - p_instances * interval '1 microsecond'
         LIMIT p_limit FOR UPDATE SKIP LOCKED);
    GET DIAGNOSTICS instances = ROW_COUNT;
    DELETE FROM activity d
     WHERE (d.at, d.instance, d.turn) IN (
        -- plan: old minutes
        SELECT a.at, a.instance, a.turn FROM activity a
         WHERE a.at < v_now - p_activity * interval '1 microsecond'
         ORDER BY a.at LIMIT p_limit
        -- plan end
        );
    GET DIAGNOSTICS activity = ROW_COUNT;
    RETURN NEXT;
END
$$;
