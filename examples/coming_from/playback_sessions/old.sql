-- A small copy of the database of the old service: subscriptions, each with its limit on concurrent streams, and
-- playback sessions.
CREATE TABLE subscriptions (subscription_id TEXT PRIMARY KEY, account_id TEXT NOT NULL, max_streams INTEGER NOT NULL);
CREATE TABLE playback_sessions (
    session_id TEXT PRIMARY KEY, viewer_id TEXT NOT NULL, account_id TEXT NOT NULL, subscription_id TEXT NOT NULL,
    tier TEXT NOT NULL, started_at TEXT NOT NULL, last_heartbeat TEXT NOT NULL, lease_expires_at TEXT NOT NULL,
    state TEXT NOT NULL
);

INSERT INTO subscriptions VALUES ('0190b0a00000700080000000000000c5', '0190b0a00000700080000000000000a1', 2);
INSERT INTO playback_sessions VALUES
    ('0190b0a0000070008000000000000301', '0190b0a0000070008000000000000001', '0190b0a00000700080000000000000a1',
     '0190b0a00000700080000000000000c5', 'hd', datetime('now', '-40 minutes'), datetime('now', '-3 seconds'),
     datetime('now', '+57 seconds'), 'ACTIVE'),
    ('0190b0a0000070008000000000000302', '0190b0a0000070008000000000000002', '0190b0a00000700080000000000000a1',
     '0190b0a00000700080000000000000c5', 'uhd', datetime('now', '-2 hours'), datetime('now', '-10 minutes'),
     datetime('now', '-9 minutes'), 'EXPIRED');
