"""The statements of the store. Most of them call one function in `functions/`.

All arguments are parameters, so no statement contains input. S608, the lint rule against SQL that is built from
strings, is suppressed where only constant text, such as a list of columns, is inserted.
"""

from tenure.store.contract import Topic
from tenure.store.contract.sessions import OpenLane
from tenure.store.engines.postgres import rows
from tenure.store.reads.keys import KEY_COLUMNS
from tenure.store.reads.leases import LEASE_COLUMNS
from tenure.store.reads.submissions import ENVELOPE_COLUMNS
from tenure.store.reads.usage import CHUNK_COLUMNS
from tenure.store.tables import jobs

_REQUESTS = (
    "$1::text::uuid[], $2::text::uuid[], $3::text::uuid[], $4::text::smallint[], $5::text::uuid[], "
    "$6::text::bigint[], $7::text::bigint[], $8::text::bigint[], $9, $10, $11, $12"
)
OPEN = {
    OpenLane.CREATE: f"SELECT * FROM tenure_open_create_1({_REQUESTS})",  # noqa: S608
    OpenLane.REOPEN: f"SELECT * FROM tenure_open_reopen_1({_REQUESTS})",  # noqa: S608
    OpenLane.LIMITED: f"SELECT * FROM tenure_open_limited_1({_REQUESTS})",  # noqa: S608
}
OPEN_ONE = """
SELECT * FROM tenure_open_one_1(
       $1::text::uuid, $2::text::uuid, $3::text::uuid, $4, $5::text::uuid, $6, $7, $8, $9, $10, $11, $12)
"""
HEARTBEAT = "SELECT * FROM tenure_heartbeat_1($1::text::uuid[], $2::text::uuid[], $3::text::uuid[], $4::text::uuid[])"
END = f"""
SELECT e.position, e.recorded, {rows.SESSION_COLUMNS}
  FROM tenure_end_1($1::text::uuid[], $2::text::text[], $3::text::uuid[], $4::text::uuid[], $5) AS e
"""  # noqa: S608
ATTACH = f"""
SELECT e.position, e.found, e.now, e.recorded, coalesce((e.session).attachment, 0) AS attachment, {rows.SESSION_COLUMNS}
  FROM tenure_attach_1($1::text::uuid[], $2::text::bigint[], $3::text::bigint[], $4::text::bigint[],
                       $5::text::uuid[], $6::text::uuid[]) AS e
"""  # noqa: S608
UPDATE_STREAMS = f"""
SELECT e.position, e.found, e.now, e.recorded, e.counted, {rows.SESSION_COLUMNS}
  FROM tenure_update_streams_1(
       $1::text::uuid[], $2::text::int[], $3::text::int[], $4::text::boolean[], $5::text[], $6::text::boolean[],
       $7::text::bigint[], $8::text::bigint[], $9::text::bigint[], $10::text::bigint[], $11::text::bigint[],
       $12::text::bigint[], $13::text::bigint[]) AS e
"""  # noqa: S608
PUT_CAPACITY = "SELECT * FROM tenure_put_capacity_1($1, $2, $3, $4, $5, $6)"
DELETE_CAPACITY = "SELECT * FROM tenure_delete_capacity_1($1, $2, $3)"

END_MANY = "SELECT * FROM tenure_end_many_1($1::text::uuid[], $2, $3)"
_FENCE = "$1, $2, $3"
EXPIRE = f"SELECT * FROM tenure_expire_1({_FENCE}, $4)"  # noqa: S608
_LEASE = ", ".join(["e.now", *(f"(e.lease).{column.name}" for column in LEASE_COLUMNS)])
ACQUIRE = f"SELECT e.taken, e.reclaimed, {_LEASE} FROM tenure_acquire_lease_1($1, $2, $3, $4) AS e"  # noqa: S608
RENEW = f"SELECT {_LEASE} FROM tenure_renew_lease_1({_FENCE}, $4) AS e"  # noqa: S608
RELEASE = f"SELECT {_LEASE} FROM tenure_release_lease_1({_FENCE}) AS e"  # noqa: S608
MARK_RESIGNED = "SELECT tenure_mark_resigned_1($1, $2)"
RESIGN = f"SELECT {_LEASE} FROM tenure_resign_lease_1($1, $2) AS e"  # noqa: S608
REGISTER_JOBS = "SELECT tenure_register_jobs_1($1, $2, $3, $4)"
BEGIN_RUN = "SELECT * FROM tenure_begin_run_1($1, $2, $3)"
FINISH_RUN = f"SELECT tenure_finish_run_1({_FENCE}, $4, $5, $6)"
COMMAND_JOB = "SELECT * FROM tenure_command_job_1($1, $2, $3)"
PRUNE = f"SELECT * FROM tenure_prune_1({_FENCE}, $4, $5, $6, $7, $8, $9, $10, $11)"  # noqa: S608
SAVE_INSTANCE = "SELECT tenure_save_instance_1($1, $2, $3, $4, $5, $6, $7, $8, $9)"
SAVE_ACTIVITY = "SELECT tenure_save_activity_1($1, $2, $3, $4)"

ACCEPT_SUBMISSIONS = "SELECT * FROM tenure_accept_submissions_1($1::text::uuid[], $2, $3, $4, $5, $6, $7, $8, $9)"
ANNOUNCE_SUBMISSIONS = f"SELECT pg_notify('{Topic.SUBMISSIONS.value}', '')"
BEGIN_ATTEMPTS = f"SELECT * FROM tenure_begin_attempts_1({_FENCE}, $4::text::uuid[], $5::text::uuid[])"  # noqa: S608
FINISH_ATTEMPTS = f"""
SELECT * FROM tenure_finish_attempts_1(
       {_FENCE}, $4::text::uuid[], $5::text::int[], $6::text::text[], $7::text::int[], $8, $9::text::boolean[], $10,
       $11::text::boolean[], $12::text::boolean[])
"""  # noqa: S608
NOTE_WAITING_REASON = f"SELECT tenure_note_waiting_reason_1({_FENCE}, $4::text::uuid[], $5)"
COMMAND_SUBMISSIONS = "SELECT * FROM tenure_command_submissions_1($1, $2::text::uuid[], $3, $4)"
READ_ENVELOPES = f"""
SELECT {", ".join(column.name for column in ENVELOPE_COLUMNS)} FROM submissions
 WHERE submission_id = ANY ($1::text::uuid[])
"""  # noqa: S608
# Packs each page of pending submissions into one row, because a new leader may have to read a million submissions.
# `rows.pending_page` unpacks the row.
LIST_PENDING = """
SELECT tenure_now(), array_agg(w.gateway),
       string_agg(uuid_send(w.submission_id) || timestamptz_send(w.last_modified_at)
                  || timestamptz_send(coalesce(w.next_attempt_at, '-infinity')), '')
  FROM (SELECT submission_id, gateway, next_attempt_at, last_modified_at FROM submissions
         WHERE state = 'pending' AND (last_modified_at, submission_id) > ($1::timestamptz, $2::text::uuid)
         ORDER BY last_modified_at, submission_id LIMIT $3) w
"""

CUT_USAGE = f"SELECT * FROM tenure_cut_usage_1({_FENCE}, $4, $5, $6, $7, $8, $9)"  # noqa: S608
SAVE_CHUNKS = f"""
SELECT tenure_save_chunks_1({_FENCE}, $4, $5, $6::text::uuid[], $7::text::uuid[], $8, $9, $10::text::uuid[], $11)
"""
SEND_WINDOWS = "SELECT * FROM tenure_send_windows_1($1, $2, $3, $4, $5::text::uuid[], $6)"
_CHUNK = ", ".join(f"c.{column.name} AS chunk_{column.name}" for column in CHUNK_COLUMNS)
FIND_CHUNKS = f"""
SELECT w.*, e.started_at AS era_started_at, e.factor_1, e.factor_2, e.factor_3, {_CHUNK}
  FROM usage_chunks c
  JOIN usage_windows w ON w.window_id = c.window_id
  JOIN usage_eras e ON e.era = w.era
 WHERE c.submission_id = ANY ($1::text::uuid[]) AND c.submission_id IS NOT NULL
"""  # noqa: S608
COMPLETES_WINDOW = """
SELECT 1 FROM usage_windows
 WHERE delivered_at IS NOT NULL
   AND window_id = ANY (ARRAY(SELECT window_id FROM usage_chunks
                               WHERE submission_id = ANY ($1::text::uuid[]) AND submission_id IS NOT NULL))
 LIMIT 1
"""
STORE_DIGESTS = f"SELECT * FROM tenure_store_digests_1({_FENCE}, $4::text::uuid[], $5)"  # noqa: S608
SAVE_MARK = f"""
SELECT tenure_save_mark_1({_FENCE}, $4, $5, $6, $7::text::uuid[], $8::text::uuid[], $9::text::smallint[],
                          $10::text::bigint[], $11::text::bigint[], $12::text::int[])
"""
DELETE_MARK = f"SELECT tenure_delete_mark_1({_FENCE}, $4, $5)"
PRUNE_USAGE = f"SELECT * FROM tenure_prune_usage_1({_FENCE}, $4, $5)"  # noqa: S608

CREATE_KEY = "SELECT * FROM tenure_create_key_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"
REVOKE_KEY = "SELECT * FROM tenure_revoke_key_1($1, $2)"
FIND_KEY = f"SELECT {', '.join(column.name for column in KEY_COLUMNS)} FROM keys WHERE public_id = $1"  # noqa: S608
READ_KEYS_VERSION = """
SELECT i.keys_version, tenure_now(), s.key_id, s.secret, s.expires_at
  FROM installation i LEFT JOIN signing_keys s ON true
"""
ROTATE_SIGNING_KEY = "SELECT tenure_rotate_signing_key_1($1, $2, $3, $4, $5, $6)"
TOUCH_KEYS = "SELECT tenure_touch_keys_1($1, $2)"
IMPORT_SESSIONS = """
SELECT tenure_import_sessions_1($1::text::uuid[], $2::text::uuid[], $3::text::uuid[], $4::text::uuid[],
       $5::text::smallint[], $6::timestamptz[], $7::timestamptz[], $8::text::bigint[], $9::text::bigint[],
       $10::text::bigint[], $11, $12)
"""

UPDATE_ALERTS = f"""
SELECT * FROM tenure_update_alerts_1({_FENCE}, $4::text::uuid[], $5, $6, $7, $8, $9::text::uuid[])
"""  # noqa: S608
BEGIN_PUBLISHING = "SELECT * FROM tenure_begin_publishing_1($1)"
FINISH_PUBLISHING = "SELECT tenure_finish_publishing_1($1)"
SUBSCRIBE_GATEWAYS = f"SELECT * FROM tenure_subscribe_gateways_1({_FENCE}, $4)"  # noqa: S608
SAVE_EVENT_BATCH = f"""
SELECT tenure_save_event_batch_1(
       {_FENCE}, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
"""

_LOCK = ", ".join(f"l.{column.name} AS lease_{column.name}" for column in LEASE_COLUMNS)
BOARD = f"""
SELECT tenure_now() AS now, {", ".join(f"j.{column.name}" for column in jobs.c)}, {_LOCK}
  FROM jobs j LEFT JOIN leases l ON l.name = 'job:' || j.name
 UNION ALL
SELECT tenure_now(), {", ".join("NULL" for _ in jobs.c)}, {_LOCK}
  FROM leases l WHERE l.name = ANY ($1::text[])
"""  # noqa: S608
