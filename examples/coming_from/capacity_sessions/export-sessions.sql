SELECT Id, UserObjectId, TenantObjectId, CapacityId, SessionType, SessionStartUtc, SessionEndUtc
FROM CapacitySessions
WHERE IsActive = 1 AND SessionEndUtc > datetime('now');
