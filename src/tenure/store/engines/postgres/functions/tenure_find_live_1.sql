-- Takes open requests, and returns a result for each one whose key (capacity, user) has a session without a recorded
-- end. The outcomes `existing` and `tenant-mismatch` are final. `reopen` means that the row must be locked before the
-- outcome is known: the session has lapsed or has a lower kind, or another transaction may hold its row.
--
-- The function locks no row, but `existing` is reliable: a transaction that ends a session first locks its row and then
-- reads the clock. If the row's xmax is 0, or older than every transaction that was in progress at our snapshot, no
-- transaction holds the row, so the session can only end after this read. For any other row the outcome is `reopen`.
--
-- A session counts as lapsed if its deadline is not after tenure_write_now(), the timestamp that a write would get now:
-- even if the clock was stepped back to an instant before the deadline, the end may already be billed or published. The
-- clock is read again for each row, so that a session that lapses during this read counts as lapsed.
CREATE OR REPLACE FUNCTION tenure_find_live_1(p_capacity uuid[], p_user uuid[], p_tenant uuid[], p_kind smallint[])
RETURNS tenure_opened_1[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz := tenure_write_now();
BEGIN
    -- Builds the ROW here, because tenure_as_opened_1 would extract each column from the session row once more.
    RETURN ARRAY(
        -- plan: live
        SELECT ROW(
                   w.position,
                   CASE WHEN s.locked_by <> 0
                             AND age(s.locked_by) <= age(pg_snapshot_xmin(pg_current_snapshot())::xid) THEN 'reopen'
                        WHEN s.deadline_at <= greatest(tenure_now(), v_now) THEN 'reopen'
                        WHEN s.tenant_object_id <> w.tenant_object_id THEN 'tenant-mismatch'
                        WHEN s.kind < w.kind THEN 'reopen'
                        ELSE 'existing' END,
                   s.session_id, s.kind, s.state,
                   s.started_at, s.term_ends_at, s.deadline_at, tenure_lapse_text_1(s.lapse_reason),
                   s.lease_microseconds, s.idle_microseconds, s.heartbeat_microseconds,
                   s.last_heartbeat_at, coalesce(s.last_activity_at, s.started_at), s.previous_session_id,
                   coalesce(s.modified_at, s.last_heartbeat_at),
                   s.tenant_object_id,
                   CASE WHEN s.stream_chunks IS NOT NULL THEN ARRAY[
                       s.stream_bytes_received, s.stream_chunks, s.stream_messages_sent, s.stream_partials_sent,
                       s.stream_finals_sent, s.stream_errors_sent, s.stream_audio_duration_ms] END,
                   NULL, NULL, s.imported_start_at)::tenure_opened_1
          FROM unnest(p_capacity, p_user, p_tenant, p_kind) WITH ORDINALITY
               AS w(capacity_id, user_object_id, tenant_object_id, kind, position)
          -- OFFSET 0 prevents a scan of the whole table by a plan that was made while the table was empty.
         CROSS JOIN LATERAL (
               SELECT n.xmax AS locked_by, n.* FROM sessions n
                WHERE n.capacity_id = w.capacity_id AND n.user_object_id = w.user_object_id AND n.closed_at IS NULL
               OFFSET 0) AS s
        -- plan end
    );
END
$$;
