"""The calls of the functions in `migrations/postgres`, one statement each.

No input is put into any of them: what S608 warns of are lists of columns, and arguments are parameters.
"""

from tenure.store.engines.postgres import rows
from tenure.store.leases import LEASE_COLUMNS
from tenure.store.store import Lane, Topic
from tenure.store.submissions import PARCEL_COLUMNS
from tenure.store.tables import jobs

_WISHES = (
    "$1::text::uuid[], $2::text::uuid[], $3::text::uuid[], $4::text::smallint[], $5::text::uuid[], "
    "$6::text::bigint[], $7::text::bigint[], $8::text::bigint[], $9, $10, $11, $12"
)
OPEN = {
    Lane.CREATE: f"SELECT * FROM tenure_open_create_2({_WISHES})",  # noqa: S608
    Lane.REOPEN: f"SELECT * FROM tenure_open_reopen_2({_WISHES})",  # noqa: S608
    Lane.LIMITED: f"SELECT * FROM tenure_open_limited_1({_WISHES})",  # noqa: S608
}
HEARTBEAT = "SELECT * FROM tenure_heartbeat_1($1::text::uuid[], $2::text::boolean[])"
END = (
    f"SELECT e.position, e.recorded, {rows.SESSION_COLUMNS} FROM tenure_end_2($1::text::uuid[], $2::text::text[]) AS e"  # noqa: S608
)
EXPIRE = "SELECT * FROM tenure_expire_1($1)"
ATTACH = f"""
SELECT e.position, e.found, e.now, e.recorded, (e.session).attachment, {rows.SESSION_COLUMNS}
  FROM tenure_attach_1($1::text::uuid[], $2::text::bigint[], $3::text::bigint[], $4::text::bigint[]) AS e
"""  # noqa: S608
UPDATE_STREAMS = f"""
SELECT e.position, e.found, e.now, e.recorded, {rows.SESSION_COLUMNS}
  FROM tenure_update_streams_1(
       $1::text::uuid[], $2::text::int[], $3::text::int[], $4::text::boolean[], $5::text[], $6::text::boolean[],
       $7::text::bigint[], $8::text::bigint[], $9::text::bigint[], $10::text::bigint[], $11::text::bigint[],
       $12::text::bigint[], $13::text::bigint[]) AS e
"""  # noqa: S608
PUT_CAPACITY = "SELECT * FROM tenure_put_capacity_1($1, $2, $3, $4)"
DELETE_CAPACITY = "SELECT * FROM tenure_delete_capacity_1($1)"

_FENCE = "$1, $2, $3"
EXPIRE = f"SELECT * FROM tenure_expire_2({_FENCE}, $4)"  # noqa: S608
ACQUIRE = "SELECT * FROM tenure_acquire_lease_1($1, $2, $3, $4)"
RENEW = f"SELECT * FROM tenure_renew_lease_1({_FENCE}, $4)"  # noqa: S608
RELEASE = f"SELECT * FROM tenure_release_lease_1({_FENCE})"  # noqa: S608
MARK_RESIGNED = "SELECT tenure_mark_resigned_1($1)"
RESIGN = "SELECT * FROM tenure_resign_lease_1($1)"
REGISTER_JOBS = "SELECT tenure_register_jobs_1($1, $2, $3, $4)"
BEGIN_RUN = "SELECT * FROM tenure_begin_run_1($1, $2, $3)"
FINISH_RUN = f"SELECT tenure_finish_run_1({_FENCE}, $4, $5, $6)"
COMMAND_JOB = "SELECT * FROM tenure_command_job_1($1, $2)"
PRUNE = f"SELECT * FROM tenure_prune_2({_FENCE}, $4, $5, $6, $7)"  # noqa: S608

ACCEPT_SUBMISSIONS = "SELECT * FROM tenure_accept_submissions_1($1::text::uuid[], $2, $3, $4, $5, $6, $7)"
ANNOUNCE_SUBMISSIONS = f"SELECT pg_notify('{Topic.SUBMISSIONS.value}', '')"
BEGIN_ATTEMPTS = f"SELECT * FROM tenure_begin_attempts_2({_FENCE}, $4::text::uuid[])"  # noqa: S608
FINISH_ATTEMPTS = f"""
SELECT * FROM tenure_finish_attempts_2(
       {_FENCE}, $4::text::uuid[], $5::text::int[], $6::text::text[], $7::text::int[], $8, $9::text::boolean[], $10)
"""  # noqa: S608
CLOSE_UNKNOWN = f"SELECT tenure_close_unknown_1({_FENCE}, $4)"
EXPLAIN_WAITING = f"SELECT tenure_explain_waiting_1({_FENCE}, $4::text::uuid[], $5)"
COMMAND_SUBMISSIONS = "SELECT * FROM tenure_command_submissions_2($1, $2::text::uuid[])"
READ_PARCELS = f"""
SELECT {", ".join(column.name for column in PARCEL_COLUMNS)} FROM submissions
 WHERE submission_id = ANY ($1::text::uuid[])
"""  # noqa: S608
# Packed, because a leader may have to read a million as it begins: rows.waiting takes it apart.
LIST_WAITING = """
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
SEAL_CHUNKS = f"SELECT * FROM tenure_seal_chunks_1({_FENCE}, $4::text::uuid[], $5)"  # noqa: S608
PRUNE_USAGE = f"SELECT * FROM tenure_prune_usage_1({_FENCE}, $4, $5)"  # noqa: S608

# As `lives.lives_statement` says it. Ids as text, since asyncpg makes an object of each that we would only print: 4 ms
# for a thousand sessions, of which PostgreSQL takes 3; 13 by way of SQLAlchemy.
_LIVES = """
SELECT s.session_id, s.user_object_id, s.tenant_object_id, s.capacity_id, s.kind, greatest(s.started_at, $3) AS from_at,
       least({end}, $4) AS to_at, greatest(s.started_at, $5) AS counts_from
  FROM sessions s
 WHERE s.session_id BETWEEN $1::text::uuid AND $2::text::uuid AND s.started_at < $4 AND {condition}
"""
READ_LIVES = f"""
SELECT l.session_id::text, l.user_object_id::text, l.tenant_object_id::text, l.capacity_id::text, l.kind,
       nullif(l.from_at, $3), nullif(l.to_at, $4),
       (extract(epoch FROM l.from_at - l.counts_from) * 1000000)::bigint,
       (extract(epoch FROM l.to_at - l.counts_from) * 1000000)::bigint
  FROM ({_LIVES.format(end="s.deadline_at", condition="s.closed_at IS NULL AND s.kind > 0 AND s.deadline_at > $3")}
        UNION ALL {_LIVES.format(end="s.closed_at", condition="s.closed_at > $3")}) l
 ORDER BY l.session_id
"""  # noqa: S608

_LOCK = ", ".join(f"l.{column.name} AS lease_{column.name}" for column in LEASE_COLUMNS)
BOARD = f"""
SELECT tenure_now() AS now, {", ".join(f"j.{column.name}" for column in jobs.c)}, {_LOCK}
  FROM jobs j LEFT JOIN leases l ON l.name = 'job:' || j.name
 UNION ALL
SELECT tenure_now(), {", ".join("NULL" for _ in jobs.c)}, {_LOCK}
  FROM leases l WHERE l.name = ANY ($1::text[])
"""  # noqa: S608
