-- Saves the counts that an instance has made in one or more minutes. `p_counts` contains the 16 counts of the first
-- minute, then those of the second one, and so on. `p_turn` tells apart the rows of a minute that the instance counts twice because the
-- clock was stepped back (see domain/activity.py). Each count is the total of its minute so far, so the greater of two
-- counts is the newer one, and neither a repeated call nor an earlier call that arrives late changes anything. The
-- function reads no clock: the minutes are arguments.
CREATE OR REPLACE FUNCTION tenure_save_activity_1(
    p_instance text, p_at timestamptz[], p_turn int[], p_counts int[])
RETURNS void
LANGUAGE sql VOLATILE
AS $$
    INSERT INTO activity AS a (
        at, instance, turn, opened, upgraded, existing, refused, heartbeats, late_heartbeats, closed_upgraded,
        closed_expired, closed_lease_expired, closed_idle_timeout, closed_stopped, closed_terminated,
        closed_evicted, closed_disconnected, closed_shutdown, closed_failed)
    SELECT m.at, p_instance, m.turn,
           p_counts[m.position * 16 - 15], p_counts[m.position * 16 - 14], p_counts[m.position * 16 - 13],
           p_counts[m.position * 16 - 12], p_counts[m.position * 16 - 11], p_counts[m.position * 16 - 10],
           p_counts[m.position * 16 - 9], p_counts[m.position * 16 - 8], p_counts[m.position * 16 - 7],
           p_counts[m.position * 16 - 6], p_counts[m.position * 16 - 5], p_counts[m.position * 16 - 4],
           p_counts[m.position * 16 - 3], p_counts[m.position * 16 - 2], p_counts[m.position * 16 - 1],
           p_counts[m.position * 16 - 0]
      FROM unnest(p_at, p_turn) WITH ORDINALITY AS m (at, turn, position)
     ORDER BY m.at, m.turn
    ON CONFLICT (at, instance, turn) DO UPDATE SET
        opened = greatest(a.opened, excluded.opened),
        upgraded = greatest(a.upgraded, excluded.upgraded),
        existing = greatest(a.existing, excluded.existing),
        refused = greatest(a.refused, excluded.refused),
        heartbeats = greatest(a.heartbeats, excluded.heartbeats),
        late_heartbeats = greatest(a.late_heartbeats, excluded.late_heartbeats),
        closed_upgraded = greatest(a.closed_upgraded, excluded.closed_upgraded),
        closed_expired = greatest(a.closed_expired, excluded.closed_expired),
        closed_lease_expired = greatest(a.closed_lease_expired, excluded.closed_lease_expired),
        closed_idle_timeout = greatest(a.closed_idle_timeout, excluded.closed_idle_timeout),
        closed_stopped = greatest(a.closed_stopped, excluded.closed_stopped),
        closed_terminated = greatest(a.closed_terminated, excluded.closed_terminated),
        closed_evicted = greatest(a.closed_evicted, excluded.closed_evicted),
        closed_disconnected = greatest(a.closed_disconnected, excluded.closed_disconnected),
        closed_shutdown = greatest(a.closed_shutdown, excluded.closed_shutdown),
        closed_failed = greatest(a.closed_failed, excluded.closed_failed)
$$;
