-- Leaves out sessions with a heartbeat after their end in Tenure: their players use the old service again.
UPDATE playback_sessions SET
    lease_expires_at = datetime(:sessionEndUtc),
    state = CASE :closeReason WHEN 'LEASE_EXPIRED' THEN 'EXPIRED' ELSE 'STOPPED' END
WHERE session_id = replace(:sessionId, '-', '') AND state IN ('STARTING', 'ACTIVE')
  AND last_heartbeat <= datetime(:sessionEndUtc);
