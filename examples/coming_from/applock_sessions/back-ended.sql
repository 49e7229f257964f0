-- Leaves out sessions whose marker was renewed after their end in Tenure: their nodes use the old service again.
UPDATE DistributedSessions SET EndedAtUtc = datetime(:sessionEndUtc)
WHERE SessionId = upper(:sessionId) AND EndedAtUtc IS NULL AND NOT EXISTS (
    SELECT 1 FROM ExecutionMarkers AS m
    WHERE m.SessionId = upper(:sessionId) AND m.RenewedAtUtc > datetime(:sessionEndUtc)
);
