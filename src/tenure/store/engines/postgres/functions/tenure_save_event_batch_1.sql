-- Saves the next batch of events of a gateway together with its submission, and sets the gateway's position in the feed
-- to the end of the batch, under the fence of the lease `events`. For a batch without events, only the position
-- changes. Returns false and does nothing if the position of the gateway is not the start of this batch, or if its last
-- batch is neither delivered nor cancelled. It also returns false if an earlier call saved the batch and the answer to
-- that call was lost: the position is then already the end of the batch.
--
-- Order: check the fence (which locks the lease), lock the gateway, read the clock, write.
CREATE OR REPLACE FUNCTION tenure_save_event_batch_1(
    p_name text, p_holder text, p_epoch bigint, p_gateway text, p_number bigint,
    p_from_at timestamptz, p_from_rank smallint, p_from_id uuid,
    p_to_at timestamptz, p_to_rank smallint, p_to_id uuid,
    p_types text, p_events int, p_digest bytea, p_submission uuid, p_contract text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    v_now timestamptz;
    v_last event_subscriptions;
    v_key text;
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    SELECT e.* INTO v_last FROM event_subscriptions e WHERE e.gateway = p_gateway FOR UPDATE;
    IF (v_last.number, v_last.position_at, v_last.position_rank, v_last.position_id)
        IS DISTINCT FROM (p_number - 1, p_from_at, p_from_rank, p_from_id)
    THEN
        RETURN false;
    END IF;
    IF EXISTS (
        SELECT FROM submissions s
         WHERE s.submission_id = v_last.submission_id AND s.state NOT IN ('delivered', 'cancelled')
    ) THEN
        RETURN false;
    END IF;
    v_now := tenure_now();
    IF p_events = 0 THEN
        UPDATE event_subscriptions SET position_at = p_to_at, position_rank = p_to_rank, position_id = p_to_id
         WHERE gateway = p_gateway;
        RETURN true;
    END IF;
    SELECT concat_ws('-', i.installation_id, 'events', p_gateway, p_number) INTO v_key FROM installation i;
    INSERT INTO event_batches (
        gateway, number, from_at, from_rank, from_id, to_at, to_rank, to_id, types, events, digest, submission_id)
    VALUES (
        p_gateway, p_number, p_from_at, p_from_rank, p_from_id, p_to_at, p_to_rank, p_to_id, p_types, p_events,
        p_digest, p_submission);
    INSERT INTO submissions (
        submission_id, gateway, caller, idempotency_key, delivery_key, digest, contract, state, attempts, failures,
        next_attempt_at, created_at, last_modified_at)
    VALUES (
        p_submission, p_gateway, ' tenure', v_key, v_key, '', p_contract, 'pending', 0, 0, v_now, v_now, v_now);
    UPDATE event_subscriptions
       SET position_at = p_to_at, position_rank = p_to_rank, position_id = p_to_id, number = p_number,
           submission_id = p_submission
     WHERE gateway = p_gateway;
    RETURN true;
END
$$;
