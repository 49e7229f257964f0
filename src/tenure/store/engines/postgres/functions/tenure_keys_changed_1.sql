-- Increases the version of the API keys by one, and notifies all instances, which then drop their caches of keys.
CREATE OR REPLACE FUNCTION tenure_keys_changed_1() RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    UPDATE installation SET keys_version = keys_version + 1;
    PERFORM pg_notify('tenure.keys', '');
END
$$;
