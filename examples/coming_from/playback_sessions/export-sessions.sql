SELECT session_id, viewer_id, account_id, subscription_id, tier, started_at, 60 AS lease
FROM playback_sessions
WHERE state IN ('STARTING', 'ACTIVE') AND lease_expires_at > datetime('now');
