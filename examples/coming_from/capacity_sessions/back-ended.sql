UPDATE CapacitySessions SET SessionEndUtc = datetime(:sessionEndUtc), IsActive = 0
WHERE Id = '{' || upper(:sessionId) || '}' AND IsActive = 1;
