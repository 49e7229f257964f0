-- Stores the digest of each rendered chunk before its first attempt, under the fence of the executor. `same` is true if
-- the stored digest equals the given one. If `same` is false, the chunk was rendered differently before and must not be
-- sent.
CREATE OR REPLACE FUNCTION tenure_store_digests_1(
    p_name text, p_holder text, p_epoch bigint, p_submission uuid[], p_digest bytea[])
RETURNS TABLE (submission_id uuid, same boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
    PERFORM tenure_check_fence_1(p_name, p_holder, p_epoch);
    -- ANY, here and below, avoids a plan, made while the table was empty, that reads the whole table.
    -- plan: store
    UPDATE usage_chunks c SET digest = d.digest
      FROM unnest(p_submission, p_digest) AS d(submission_id, digest)
     WHERE c.submission_id = ANY (p_submission) AND c.submission_id = d.submission_id AND c.submission_id IS NOT NULL
       AND c.digest IS NULL
    -- plan end
    ;
    RETURN QUERY
        -- plan: result
        SELECT c.submission_id, c.digest = d.digest
          FROM unnest(p_submission, p_digest) AS d(submission_id, digest)
          JOIN usage_chunks c ON c.submission_id = d.submission_id AND c.submission_id IS NOT NULL
         WHERE c.submission_id = ANY (p_submission)
        -- plan end
    ;
END
$$;
