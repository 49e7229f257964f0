-- A small copy of the other service: resources, sessions, and the markers of executions and of jobs. SQLite takes the
-- place of SQL Server.
CREATE TABLE Resources (ResourceId TEXT PRIMARY KEY, TenantId TEXT NOT NULL, MaxConcurrent INTEGER);
CREATE TABLE DistributedSessions (
    SessionId TEXT PRIMARY KEY, UserId TEXT NOT NULL, TenantId TEXT NOT NULL, ResourceId TEXT NOT NULL,
    CreatedAtUtc TEXT NOT NULL, ExpiresAtUtc TEXT NOT NULL, EndedAtUtc TEXT
);
CREATE TABLE ExecutionMarkers (
    SessionId TEXT PRIMARY KEY, Node TEXT NOT NULL, RenewedAtUtc TEXT NOT NULL, TimeoutSeconds INTEGER NOT NULL
);
CREATE TABLE JobMarkers (JobName TEXT NOT NULL, DueAtUtc TEXT NOT NULL, Node TEXT, FinishedAtUtc TEXT,
                         PRIMARY KEY (JobName, DueAtUtc));

INSERT INTO Resources VALUES ('0190B0A0-0000-7000-8000-0000000000C3', '0190B0A0-0000-7000-8000-0000000000A1', 10);
INSERT INTO DistributedSessions VALUES
    ('0190B0A0-0000-7000-8000-000000000201', '0190B0A0-0000-7000-8000-000000000001', '0190B0A0-0000-7000-8000-0000000000A1',
     '0190B0A0-0000-7000-8000-0000000000C3', datetime('now', '-2 hours'), datetime('now', '+22 hours'), NULL),
    ('0190B0A0-0000-7000-8000-000000000202', '0190B0A0-0000-7000-8000-000000000002', '0190B0A0-0000-7000-8000-0000000000A1',
     '0190B0A0-0000-7000-8000-0000000000C3', datetime('now', '-5 hours'), datetime('now', '+19 hours'), NULL);
-- NODE-2 crashed an hour ago while it ran the second session, so the marker of this session was not removed.
INSERT INTO ExecutionMarkers VALUES
    ('0190B0A0-0000-7000-8000-000000000201', 'NODE-1', datetime('now', '-10 seconds'), 120),
    ('0190B0A0-0000-7000-8000-000000000202', 'NODE-2', datetime('now', '-1 hours'), 120);
INSERT INTO JobMarkers VALUES
    ('Invoices', datetime('now', 'start of day'), 'NODE-1', datetime('now', 'start of day', '+3 seconds'));
