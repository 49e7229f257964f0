SELECT ResourceId AS capacityId, TenantId AS tenantObjectId, MaxConcurrent AS maxSessions FROM Resources;
