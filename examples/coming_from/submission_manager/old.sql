-- A small copy of the database of the submission manager that Tenure replaces: its intents, and the lease of its
-- leader.
CREATE TABLE intents (
    intent_id TEXT PRIMARY KEY, target TEXT NOT NULL, payload TEXT NOT NULL, status TEXT NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0, created_at TEXT NOT NULL
);
CREATE TABLE leader_lease (id INTEGER PRIMARY KEY, holder_id TEXT, lease_expires_at TEXT);

-- The leader was stopped while it was sending intent-5: the target may or may not have received this intent.
INSERT INTO intents VALUES
    ('intent-1', 'orders', '{"order": 1, "seats": 2}', 'SUBMITTED', 1, datetime('now', '-1 days')),
    ('intent-2', 'orders', '{"order": 2, "seats": 5}', 'PENDING', 0, datetime('now', '-2 minutes')),
    ('intent-3', 'orders', '{"order": 3, "seats": 1}', 'RETRYING', 4, datetime('now', '-1 minutes')),
    ('intent-4', 'orders', '{"order": 4, "seats": 9}', 'FAILED', 20, datetime('now', '-3 days')),
    ('intent-5', 'orders', '{"order": 5, "seats": 4}', 'SUBMITTING', 1, datetime('now', '-3 minutes'));
INSERT INTO leader_lease VALUES (1, 'node-1', datetime('now', '+60 seconds'));
