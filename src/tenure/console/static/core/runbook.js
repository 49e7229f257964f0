// @ts-check
/**
 * The sections of docs/runbook.md about the alerts that Tenure raises. A test compares both texts.
 * @type {Record<string, {meaning: string, look: string, act: string, avoid: string}>}
 */
export const RUNBOOK = {
  "job-lock-held": {
    "meaning": "A job has held its lock for more than five minutes. The instance renews the lock, so it is alive, but the run does not end. Meanwhile no other run of this job begins.",
    "look": "`GET /jobs/{name}/runs`, and the `detail` of the alert, which names the holder. Is the run large (a sweep after an outage, pruning after a long pause), or stuck? The log of the holder has `store.unavailable` or `lease.renew_failed` if the database is slow.",
    "act": "Wait if the run makes progress: `tenure_sessions_closed_total` rises during a sweep. If the run makes no progress, restart the instance that holds the lock: another instance runs the job again, and repeats nothing that is committed.",
    "avoid": "delete or edit the row of the lock in `leases`. The run would continue while the next one runs."
  },
  "job-failing": {
    "meaning": "A job has failed three times in a row. Tenure retries the job at least once a minute. The `detail` of the alert has the last error.",
    "look": "`job.failed` in the log, with the traceback, and `GET /jobs/{name}/runs`. Does the job fail on every instance, or only on one (the `holder` of each run)?",
    "act": "Repair the cause that the error names: usually the database (disk, permissions, timeouts), or the code of the job if an application added it. The alert clears after the next run that succeeds. `POST /jobs/{name}/run` starts a run at once.",
    "avoid": "pause `expire-sessions` or `emit-usage` to silence the alert: while `expire-sessions` is paused, ends are not recorded, and while `emit-usage` is paused, no new usage is sent."
  },
  "lock-reclaimed": {
    "meaning": "An instance acquired a lease or a job lock that its last holder had let expire. The last holder crashed, was killed or paused, or lost its connection to the database. The alert clears fifteen minutes after the last such acquisition.",
    "look": "For the lock of a job, `job.reclaimed` in the log names the old holder (`holder`). For a lease, `leader_acquired` with `reclaimed` names the new holder, and `GET /leases/{name}/history` the old one. Then look at the log and the host of the old holder: out of memory, a kill without SIGTERM, a suspended machine.",
    "act": "Nothing, if a host was lost: another instance has taken over the work. If the alert repeats, give the instances more memory or CPU, or stop them with SIGTERM, so that they release their leases.",
    "avoid": "lengthen `[leases] duration_seconds` as the first measure: the next holder then waits longer."
  },
  "leadership-flapping": {
    "meaning": "A lease was acquired more than five times in ten minutes. Each change of the leader interrupts the work that only the leader does, such as sending submissions.",
    "look": "The `reason` of `leader_lost`; [Leadership](operating.md#leadership) lists the cause of each reason. `database` and `expired` point to the database or an overloaded host, `failed` points to the work itself.",
    "act": "Repair the cause. If one instance is at fault, stop it.",
    "avoid": "restart all instances at once: each restart of a leader is one more change of leadership."
  },
  "usage-failing": {
    "meaning": "A chunk of usage has failed more than three times in a row. The receiver refuses the chunk, or does not answer.",
    "look": "`GET /submissions?gateway=usages&state=pending`: `lastError` of the oldest submission. Do all submissions fail, or only one?",
    "act": "If all fail, repair the receiver or its URL, secret or certificate; Tenure then sends all waiting submissions, oldest first. If one fails and others are delivered, the receiver refuses this payload: search the log of the receiver for the delivery key.",
    "avoid": "remove `[gateways.usages]`: windows that are cut without this gateway are sent only when you run `tenure usage send`."
  },
  "usage-lagging": {
    "meaning": "The oldest usage that is not delivered is more than fifteen minutes old. If the interval of `emit-usage` is longer than a minute, the job `watch` raises the alert later, by as much as the interval exceeds a minute; the Prometheus rule does not. Nothing is lost, but billing is late.",
    "look": "`GET /jobs`: does `emit-usage` run and succeed? If so, `GET /submissions?gateway=usages&state=pending` shows the submissions that wait, and why.",
    "act": "If `emit-usage` fails, see [job-failing](#job-failing). If `emit-usage` is paused, resume the job. If deliveries fail, see [usage-failing](#usage-failing).",
    "avoid": "change the clock or the windows in the database."
  },
  "chunk-withheld": {
    "meaning": "Tenure has not sent a chunk, for one of three reasons: sessions, windows or chunks were altered in the database, so that the chunk is missing or its digest or sums differ from the stored ones; the chunk could not be read in time; or the leading instance does not know its format.",
    "look": "`usage.withheld` in the log, with the `error`; for an unknown format, `payload.withheld`. `tenure audit` reports which rows differ.",
    "act": "If the chunk could not be read in time, look at the load of the database. If its format is unknown, upgrade all instances. If rows were altered, restore them from a backup. Tenure then sends the chunk within ten minutes, or at once after `POST /submissions/{id}/retry`.",
    "avoid": "edit the sums or the digest of the chunk to make them agree: the billed usage and the stored usage would differ."
  },
  "lapses-exceed-openings": {
    "meaning": "In the last ten minutes at least a hundred sessions lapsed, and more sessions lapsed than were opened. Usually many clients have stopped sending heartbeats. If more than 20 000 sessions ended in the ten minutes, the job `watch` looks only at the last 20 000 ends; the Prometheus rule always counts all.",
    "look": "`tenure_sessions_closed_total` by `reason`. `LEASE_EXPIRED` means that heartbeats are missing: do requests reach the instances (`tenure_http_request_seconds_count`), and which status do they get? Many ends with `IDLE_TIMEOUT` or `EXPIRED` usually follow a time in which many sessions were opened.",
    "act": "Check the load balancer, DNS and the network between clients and instances, and the last releases of the clients.",
    "avoid": "pause `expire-sessions`: a session ends at its deadline whether or not the sweep records it."
  },
  "clock-behind": {
    "meaning": "The clock of the database is behind the end of the last usage window: it was stepped back, or a standby with a slower clock has become the primary. Until the clock has passed the end of that window, all session writes get this end or a later instant as their timestamp, no session lapses, and no window is cut.",
    "look": "Compare the clock of the database's host with a good time source. `usage.cut_skipped` in the log has the time of the database (`now`) and the end of the last window (`last_cut_at`).",
    "act": "If the clock is slow, correct it forward, by slewing. If the clock was ahead before and is correct now, wait.",
    "avoid": "edit `last_cut_at`: usage that was already billed would be billed again."
  }
};
