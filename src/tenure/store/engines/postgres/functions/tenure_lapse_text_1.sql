-- Converts a code in the column `lapse_reason` to the close reason that it stands for. The code is the first letter of
-- this reason. PostgreSQL inlines this function.
CREATE OR REPLACE FUNCTION tenure_lapse_text_1(p_code "char") RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE p_code WHEN 'E' THEN 'EXPIRED' WHEN 'L' THEN 'LEASE_EXPIRED' WHEN 'I' THEN 'IDLE_TIMEOUT' END
$$;
