-- A small copy of the database of the other service: its capacities, sessions and job locks. The other service uses SQL
-- Server; this copy is for SQLite.
CREATE TABLE Capacities (CapacityId TEXT PRIMARY KEY, TenantObjectId TEXT NOT NULL, MaxSessions INTEGER);
CREATE TABLE CapacitySessions (
    Id TEXT PRIMARY KEY, UserObjectId TEXT NOT NULL, TenantObjectId TEXT NOT NULL, CapacityId TEXT NOT NULL,
    SessionType TEXT NOT NULL, SessionStartUtc TEXT NOT NULL, SessionEndUtc TEXT NOT NULL, IsActive INTEGER NOT NULL
);
CREATE TABLE JobLocks (JobName TEXT PRIMARY KEY, LockedBy TEXT, LockedUntilUtc TEXT);

INSERT INTO Capacities VALUES
    ('{0190B0A0-0000-7000-8000-0000000000C1}', '{0190B0A0-0000-7000-8000-0000000000A1}', 3),
    ('{0190B0A0-0000-7000-8000-0000000000C2}', '{0190B0A0-0000-7000-8000-0000000000A1}', NULL);
INSERT INTO CapacitySessions VALUES
    ('{0190B0A0-0000-7000-8000-000000000101}', '{0190B0A0-0000-7000-8000-000000000001}', '{0190B0A0-0000-7000-8000-0000000000A1}',
     '{0190B0A0-0000-7000-8000-0000000000C1}', 'Basic', datetime('now', '-3 days'), datetime('now', '+27 days'), 1),
    ('{0190B0A0-0000-7000-8000-000000000102}', '{0190B0A0-0000-7000-8000-000000000002}', '{0190B0A0-0000-7000-8000-0000000000A1}',
     '{0190B0A0-0000-7000-8000-0000000000C2}', 'Pro', datetime('now', '-1 hours'), datetime('now', '+30 days', '-1 hours'), 1),
    ('{0190B0A0-0000-7000-8000-000000000103}', '{0190B0A0-0000-7000-8000-000000000003}', '{0190B0A0-0000-7000-8000-0000000000A1}',
     '{0190B0A0-0000-7000-8000-0000000000C1}', 'Basic', datetime('now', '-40 days'), datetime('now', '-10 days'), 0);
INSERT INTO JobLocks VALUES ('ExpireSessions', NULL, NULL), ('EmitUsage', 'WEB-2', datetime('now', '+1 minutes'));
