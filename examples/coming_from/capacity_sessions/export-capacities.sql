SELECT CapacityId, MaxSessions, TenantObjectId FROM Capacities;
