-- Converts the code of a lapse reason, as the table stores it, to the reason. The code is the first letter of the
-- reason. PostgreSQL inlines this function.
CREATE OR REPLACE FUNCTION tenure_lapse_text_1(p_code "char") RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE p_code WHEN 'E' THEN 'EXPIRED' WHEN 'L' THEN 'LEASE_EXPIRED' WHEN 'I' THEN 'IDLE_TIMEOUT' END
$$;
