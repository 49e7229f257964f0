INSERT INTO DistributedSessions (SessionId, UserId, TenantId, ResourceId, CreatedAtUtc, ExpiresAtUtc, EndedAtUtc)
VALUES (upper(:sessionId), upper(:userObjectId), upper(:tenantObjectId), upper(:capacityId),
        datetime(:sessionStartUtc), datetime(:sessionEndUtc), NULL)
ON CONFLICT (SessionId) DO UPDATE SET ExpiresAtUtc = excluded.ExpiresAtUtc, EndedAtUtc = NULL;

-- A fresh marker, so that the old clean-up job gives the node the whole time-out.
INSERT INTO ExecutionMarkers (SessionId, Node, RenewedAtUtc, TimeoutSeconds)
VALUES (upper(:sessionId), 'TENURE', datetime('now'), 120)
ON CONFLICT (SessionId) DO UPDATE SET RenewedAtUtc = excluded.RenewedAtUtc;
