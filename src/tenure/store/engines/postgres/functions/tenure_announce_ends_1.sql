-- Notifies all instances of the ends of the given sessions, which have had a stream. Sessions that have not ended are
-- left out. PostgreSQL delivers the notifications after the commit.
--
-- A notification is a list of session ids, each with its close reason: `id REASON,id REASON`. It contains at most 150
-- sessions, because PostgreSQL limits its text to 8000 bytes. PostgreSQL commits transactions with a notification one
-- at a time. So callers pass only sessions that have had a stream, and most transactions have no notification.
CREATE OR REPLACE FUNCTION tenure_announce_ends_1(p_session uuid[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM pg_notify('tenure_session_ends', string_agg(e.session_id || ' ' || e.close_reason, ','))
       FROM (SELECT s.session_id, s.close_reason, (row_number() OVER () - 1) / 150 AS part
               FROM sessions s
              WHERE s.session_id = ANY (p_session) AND s.closed_at IS NOT NULL) AS e
      GROUP BY e.part;
END
$$;
