-- Performs the first of the two steps that move the horizon of events. This step moves `stamped_after` to now or later.
-- Session writes that read the clock after this transaction has committed get timestamps after `stamped_after`, because
-- tenure_write_now() returns only instants after `stamped_after`. Returns the current horizon, and the instant to which
-- tenure_finish_publishing_1 can move the horizon. This instant is NULL if the horizon was moved within the last
-- `p_pause` microseconds.
--
-- If the clock is behind the last cut or `stamped_after`, it was stepped back, and earlier writes may have timestamps
-- later than now. `stamped_after` then moves at least to the newest of these timestamps. Otherwise the events of these
-- writes would stay after the horizon until the clock reaches their timestamps.
CREATE OR REPLACE FUNCTION tenure_begin_publishing_1(p_pause bigint)
RETURNS TABLE (published_at timestamptz, stamped_after timestamptz)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := tenure_now();
    v_newest timestamptz;
BEGIN
    SELECT i.published_at INTO published_at FROM installation i;
    IF v_now >= published_at AND v_now < published_at + p_pause * interval '1 microsecond' THEN
        RETURN NEXT;
        RETURN;
    END IF;
    IF tenure_write_now() > tenure_now() THEN
        SELECT max(l.at) INTO v_newest
          FROM (
            SELECT c.closed_at AS at
              FROM (SELECT s.closed_at FROM sessions s
                     WHERE s.closed_at IS NOT NULL ORDER BY s.closed_at DESC LIMIT 1) c
             UNION ALL
            SELECT o.started_at
              FROM unnest(ARRAY[1, 2, 3]::smallint[]) AS k(kind)
             CROSS JOIN LATERAL (
                   SELECT s.started_at FROM sessions s
                    WHERE s.close_reason IS NULL AND s.kind = k.kind ORDER BY s.started_at DESC LIMIT 1) o
          ) AS l;
    END IF;
    -- The new value is computed from the row, so it also grows if two instances run this function at the same time.
    UPDATE installation i
       SET stamped_after =
           greatest(tenure_now(), i.last_cut_at, i.stamped_after + interval '1 microsecond', v_newest)
    RETURNING i.stamped_after INTO stamped_after;
    RETURN NEXT;
END
$$;
