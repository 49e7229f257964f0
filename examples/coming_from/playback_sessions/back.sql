INSERT INTO playback_sessions (
    session_id, viewer_id, account_id, subscription_id, tier, started_at, last_heartbeat, lease_expires_at, state
) VALUES (
    replace(:sessionId, '-', ''), replace(:userObjectId, '-', ''), replace(:tenantObjectId, '-', ''),
    replace(:capacityId, '-', ''), CASE :sessionKind WHEN 1 THEN 'sd' WHEN 2 THEN 'hd' ELSE 'uhd' END,
    datetime(:sessionStartUtc), datetime(:lastHeartbeat), datetime(:leaseExpiresAt), 'ACTIVE'
) ON CONFLICT (session_id) DO UPDATE SET
    last_heartbeat = excluded.last_heartbeat, lease_expires_at = excluded.lease_expires_at, state = 'ACTIVE';
