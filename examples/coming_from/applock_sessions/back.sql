INSERT INTO DistributedSessions (SessionId, UserId, TenantId, ResourceId, CreatedAtUtc, ExpiresAtUtc, EndedAtUtc)
VALUES (upper(:sessionId), upper(:userObjectId), upper(:tenantObjectId), upper(:capacityId),
        datetime(:sessionStartUtc), datetime(:sessionEndUtc), NULL)
ON CONFLICT (SessionId) DO UPDATE SET ExpiresAtUtc = excluded.ExpiresAtUtc, EndedAtUtc = NULL;
