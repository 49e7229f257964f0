INSERT INTO CapacitySessions (
    Id, UserObjectId, TenantObjectId, CapacityId, SessionType, SessionStartUtc, SessionEndUtc, IsActive
) VALUES (
    '{' || upper(:sessionId) || '}', '{' || upper(:userObjectId) || '}', '{' || upper(:tenantObjectId) || '}',
    '{' || upper(:capacityId) || '}', CASE :sessionKind WHEN 1 THEN 'Basic' WHEN 2 THEN 'Pro' ELSE 'Premium' END,
    datetime(:sessionStartUtc), datetime(:sessionEndUtc), 1
) ON CONFLICT (Id) DO UPDATE SET SessionEndUtc = excluded.SessionEndUtc, IsActive = 1;
