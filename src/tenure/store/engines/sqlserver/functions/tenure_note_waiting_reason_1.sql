-- Records, under the fence of the executor, the reason why pending submissions are not sent although they are due.
--
-- Order: check the fence (which locks the lease), lock the submissions in the order of their ids, write.
--
-- @request: {"error", "submissions": [submission, …]}
CREATE OR ALTER PROCEDURE dbo.tenure_note_waiting_reason_1
    @name varchar(200),
    @holder varchar(200),
    @epoch bigint,
    @request nvarchar(MAX)
AS
BEGIN
    SET NOCOUNT ON;
    SET XACT_ABORT ON;
    SET LOCK_TIMEOUT 1000;

    DECLARE @error nvarchar(1000) = JSON_VALUE(@request, '$.error'), @explained int;
    DECLARE @asked TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY
    );
    DECLARE @mine TABLE (
        submission_id uniqueidentifier NOT NULL PRIMARY KEY,
        state varchar(16) NOT NULL,
        last_error nvarchar(1000) COLLATE Latin1_General_100_BIN2
    );

    INSERT INTO @asked (submission_id)
    SELECT j.submission_id
    FROM OPENJSON(@request, '$.submissions') WITH (submission_id uniqueidentifier '$') AS j;

    BEGIN TRANSACTION;
    EXEC dbo.tenure_check_fence_1 @name = @name, @holder = @holder, @epoch = @epoch;

    -- Lock the rows, in the order of their ids. Without TOP the ORDER BY would be ignored.
    INSERT INTO @mine (submission_id, state, last_error)
    SELECT TOP (1000) s.submission_id, s.state, s.last_error
    FROM @asked AS a
    INNER JOIN dbo.submissions AS s WITH (UPDLOCK, HOLDLOCK, ROWLOCK, INDEX (submissions_pkey))
        ON a.submission_id = s.submission_id
    ORDER BY a.submission_id
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);

    UPDATE s
    SET s.last_error = @error
    FROM @mine AS m
    INNER JOIN dbo.submissions AS s ON m.submission_id = s.submission_id
    WHERE m.state = 'pending' AND (m.last_error IS NULL OR m.last_error <> @error)
    OPTION (FORCE ORDER, LOOP JOIN, MAXDOP 1);
    SET @explained = @@ROWCOUNT;

    COMMIT TRANSACTION;

    SELECT @explained AS explained;
END;
