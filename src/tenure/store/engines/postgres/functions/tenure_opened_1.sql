-- A result row of a batch of open requests: the position of the request in the batch, its outcome, and the columns of
-- the session. The caller needs `user_object_id` and `capacity_id` only for a session that was closed. `stream` is an
-- array of the stream counters, or NULL if the session never had a stream.
--
-- The type has a name, because functions of the opening lanes collect such rows in arrays, and an array needs a named
-- type. PostgreSQL cannot replace a type, so a changed type gets the next version number.
DO $$
BEGIN
    IF to_regtype('tenure_opened_1') IS NULL THEN
        CREATE TYPE tenure_opened_1 AS (
            "position" int, outcome text, session_id uuid, kind smallint, state text,
            started_at timestamptz, term_ends_at timestamptz, deadline_at timestamptz, lapse_reason text,
            lease_microseconds bigint, idle_microseconds bigint, heartbeat_microseconds bigint,
            last_heartbeat_at timestamptz, last_activity_at timestamptz, previous_session_id uuid,
            modified_at timestamptz, tenant_object_id uuid, stream bigint[], user_object_id uuid, capacity_id uuid,
            imported_start_at timestamptz
        );
    END IF;
END
$$;
