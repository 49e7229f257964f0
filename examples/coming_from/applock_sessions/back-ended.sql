-- A marker that was renewed after the end in Tenure is that of a node that works with the old service again.
UPDATE DistributedSessions SET EndedAtUtc = datetime(:sessionEndUtc)
WHERE SessionId = upper(:sessionId) AND EndedAtUtc IS NULL AND NOT EXISTS (
    SELECT 1 FROM ExecutionMarkers AS m
    WHERE m.SessionId = upper(:sessionId) AND m.RenewedAtUtc > datetime(:sessionEndUtc)
);
