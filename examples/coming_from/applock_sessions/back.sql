INSERT INTO DistributedSessions (SessionId, UserId, TenantId, ResourceId, CreatedAtUtc, ExpiresAtUtc, EndedAtUtc)
VALUES (upper(:sessionId), upper(:userObjectId), upper(:tenantObjectId), upper(:capacityId),
        datetime(:sessionStartUtc), datetime(:sessionEndUtc), NULL)
ON CONFLICT (SessionId) DO UPDATE SET ExpiresAtUtc = excluded.ExpiresAtUtc, EndedAtUtc = NULL;

-- Renews the marker of the session, so that its node has the whole time-out to renew the marker again before the
-- clean-up job of the old service treats the session as dead.
INSERT INTO ExecutionMarkers (SessionId, Node, RenewedAtUtc, TimeoutSeconds)
VALUES (upper(:sessionId), 'TENURE', datetime('now'), 120)
ON CONFLICT (SessionId) DO UPDATE SET RenewedAtUtc = excluded.RenewedAtUtc;
