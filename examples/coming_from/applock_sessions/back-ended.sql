-- Marks a session that has ended in Tenure as ended in the old service. The statement leaves the session unchanged if
-- its execution marker was renewed after its end in Tenure: then its node uses the old service again.
UPDATE DistributedSessions SET EndedAtUtc = datetime(:sessionEndUtc)
WHERE SessionId = upper(:sessionId) AND EndedAtUtc IS NULL AND NOT EXISTS (
    SELECT 1 FROM ExecutionMarkers AS m
    WHERE m.SessionId = upper(:sessionId) AND m.RenewedAtUtc > datetime(:sessionEndUtc)
);
