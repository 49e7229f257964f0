-- Returns the position of each gateway in the feed. A new gateway starts at the current time. `is_settled` means that
-- the next batch may be saved: the gateway has no batch yet, or its last batch is delivered, cancelled or already
-- pruned. The fence is that of the lease `events`, whose leader saves the batches.
CREATE OR REPLACE FUNCTION tenure_subscribe_gateways_1(
    p_name text, p_holder text, p_epoch bigint, p_gateway text[])
RETURNS TABLE (
    gateway text, position_at timestamptz, position_rank smallint, position_id uuid, number bigint, is_settled boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    INSERT INTO event_subscriptions (gateway, position_at, position_rank, position_id, number)
    SELECT g.gateway, tenure_write_now(), 2, '00000000-0000-0000-0000-000000000000', 0
      FROM unnest(p_gateway) AS g(gateway)
    ON CONFLICT (gateway) DO NOTHING;
    RETURN QUERY
        SELECT e.gateway::text, e.position_at, e.position_rank, e.position_id, e.number,
               NOT EXISTS (SELECT FROM submissions s
                            WHERE s.submission_id = e.submission_id AND s.state NOT IN ('delivered', 'cancelled'))
          FROM event_subscriptions e WHERE e.gateway = ANY (p_gateway)
    ;
END
$$;
