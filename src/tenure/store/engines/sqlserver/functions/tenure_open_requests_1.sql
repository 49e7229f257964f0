-- Returns the open requests in @request as rows. The comment of tenure_open_1 describes @request.
CREATE OR ALTER FUNCTION dbo.tenure_open_requests_1(@request nvarchar(MAX))
RETURNS TABLE
AS
RETURN
SELECT
    j.position, j.capacity_id, j.user_object_id, j.tenant_object_id, j.kind, j.session_id,
    j.lease_microseconds, j.heartbeat_microseconds, j.idle_microseconds
FROM OPENJSON(@request, '$.requests') WITH (
    position int '$[0]',
    capacity_id uniqueidentifier '$[1]',
    user_object_id uniqueidentifier '$[2]',
    tenant_object_id uniqueidentifier '$[3]',
    kind smallint '$[4]',
    session_id uniqueidentifier '$[5]',
    lease_microseconds bigint '$[6]',
    heartbeat_microseconds bigint '$[7]',
    idle_microseconds bigint '$[8]'
) AS j;
