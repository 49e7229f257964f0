SELECT s.SessionId AS sessionId, s.UserId AS userObjectId, s.TenantId AS tenantObjectId, s.ResourceId AS capacityId,
       1 AS sessionKind, s.CreatedAtUtc AS sessionStartUtc, s.ExpiresAtUtc AS sessionEndUtc,
       m.TimeoutSeconds AS leaseSeconds
FROM DistributedSessions AS s
INNER JOIN ExecutionMarkers AS m ON m.SessionId = s.SessionId
WHERE s.EndedAtUtc IS NULL AND s.ExpiresAtUtc > datetime('now')
  AND m.RenewedAtUtc > datetime('now', '-' || m.TimeoutSeconds || ' seconds');
