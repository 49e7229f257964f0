-- Marks a session that has ended in Tenure as ended in the old service. The statement leaves the session unchanged if
-- its last heartbeat in the old table is later than its end in Tenure: then its player uses the old service again.
UPDATE playback_sessions SET
    lease_expires_at = datetime(:sessionEndUtc),
    state = CASE :closeReason WHEN 'LEASE_EXPIRED' THEN 'EXPIRED' ELSE 'STOPPED' END
WHERE session_id = replace(:sessionId, '-', '') AND state IN ('STARTING', 'ACTIVE')
  AND last_heartbeat <= datetime(:sessionEndUtc);
