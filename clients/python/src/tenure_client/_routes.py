"""The HTTP routes of Tenure that the client calls, with the parameters and the response of each, and whether the client
may repeat a request to it.

A test compares this table with the `/openapi.json` of the service.
"""

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec

from tenure_client import models


class Route(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """The method of the client, such as `sessions.open`."""
    method: str
    path: str
    answer: Any
    body: type[models.Body] | None = None
    query: type[models.Body] | None = None
    repeatable: bool = True
    """Whether the client may send a request again if it does not know whether the first try was carried out."""
    prefixed: bool = True
    """Whether the path is below the URL prefix of the service."""

    def path_with(self, **values: object) -> str:
        return re.sub(r"{(\w+)}", lambda found: quote(str(values[found.group(1)]), safe=""), self.path)


ROUTES: dict[str, Route] = {}


def _route(name: str, method: str, path: str, answer: Any, **more: Any) -> Route:
    route = Route(name=name, method=method, path=path, answer=answer, **more)
    ROUTES[name] = route
    return route


OPEN = _route("sessions.open", "PUT", "/sessions", models.OpenedSession, body=models.OpenBody)
HEARTBEAT = _route(
    "sessions.heartbeat", "POST", "/sessions/{sessionId}/heartbeat", models.Heartbeat, body=models.HeartbeatBody
)
HEARTBEATS = _route(
    "sessions.heartbeats", "POST", "/sessions/heartbeats", models.Heartbeats, body=models.HeartbeatsBody
)
SESSIONS = _route("sessions.list", "GET", "/sessions", models.SessionList, query=models.SessionQuery)
COUNT = _route("sessions.count", "GET", "/sessions/count", models.SessionCount, query=models.MatchQuery)
SESSION = _route("sessions.get", "GET", "/sessions/{sessionId}", models.Session)
HISTORY = _route("sessions.history", "GET", "/sessions/{sessionId}/history", models.History, query=models.PageQuery)
END = _route("sessions.end", "DELETE", "/sessions/{sessionId}", models.EndedSession)
# Repeatable because every repetition has the same action id.
END_MATCHING = _route("sessions.end_matching", "POST", "/sessions/end", models.EndedSessions, body=models.EndBody)
SESSION_METRICS = _route("sessions.metrics", "GET", "/sessions/metrics", models.SessionMetrics)

SET_CAPACITY = _route("capacities.set", "PUT", "/capacities/{capacityId}", models.Capacity, body=models.CapacityBody)
CAPACITY = _route("capacities.get", "GET", "/capacities/{capacityId}", models.Capacity)
CAPACITIES = _route("capacities.list", "GET", "/capacities", models.CapacityList, query=models.CapacityQuery)
DELETE_CAPACITY = _route("capacities.delete", "DELETE", "/capacities/{capacityId}", models.Capacity)

# A repetition would transcribe the recording again, and could open another session.
TRANSCRIBE = _route(
    "transcribe", "POST", "/transcribe", models.Transcription, query=models.TranscribeQuery, repeatable=False
)

# Repeatable because every repetition has the same idempotency key.
SUBMIT = _route("submissions.submit", "POST", "/submissions", models.Accepted, body=models.SubmitBody)
SUBMISSIONS = _route("submissions.list", "GET", "/submissions", models.SubmissionList, query=models.SubmissionQuery)
SUBMISSION_COUNTS = _route("submissions.counts", "GET", "/submissions/counts", models.SubmissionCounts)
SUBMISSION = _route("submissions.get", "GET", "/submissions/{submissionId}", models.Submission)
# A repetition would again give the submission its full number of attempts.
RETRY = _route("submissions.retry", "POST", "/submissions/{submissionId}/retry", models.Submission, repeatable=False)
CANCEL = _route("submissions.cancel", "POST", "/submissions/{submissionId}/cancel", models.Submission)
RETRY_ALL = _route(
    "submissions.retry_all",
    "POST",
    "/submissions/retry",
    models.Commanded,
    body=models.CommandBody,
    repeatable=False,
)
# The number in the response to a repetition would not include the submissions that the first request has cancelled.
CANCEL_ALL = _route(
    "submissions.cancel_all",
    "POST",
    "/submissions/cancel",
    models.Commanded,
    body=models.CommandBody,
    repeatable=False,
)

USAGE = _route("usage.sum", "GET", "/usage", models.Usage, query=models.UsageQuery)
WINDOWS = _route("usage.windows", "GET", "/usage/windows", models.UsageWindowList, query=models.PageQuery)
SEND_WINDOWS = _route("usage.send", "POST", "/usage/windows/send", models.Sent, body=models.SendBody, repeatable=False)
WINDOW = _route("usage.window", "GET", "/usage/windows/{windowId}", models.WholeUsageWindow)

LEASES = _route("leases.list", "GET", "/leases", models.LeaseList, query=models.PageQuery)
TERMS = _route("leases.history", "GET", "/leases/{name}/history", models.TermList, query=models.PageQuery)
TIMELINE = _route("leases.timeline", "GET", "/leases/history", models.TermList, query=models.TermQuery)
# A repetition could end the lease of the next holder.
RESIGN = _route("leases.resign", "POST", "/leases/{name}/resign", models.Lease, repeatable=False)

JOBS = _route("jobs.list", "GET", "/jobs", models.JobList, query=models.PageQuery)
RUNS = _route("jobs.runs", "GET", "/jobs/{name}/runs", models.RunList, query=models.PageQuery)
RUN = _route("jobs.run", "POST", "/jobs/{name}/run", models.Job, repeatable=False)
PAUSE = _route("jobs.pause", "POST", "/jobs/{name}/pause", models.Job)
RESUME = _route("jobs.resume", "POST", "/jobs/{name}/resume", models.Job)

ME = _route("me", "GET", "/me", models.Caller)
SIGN_IN_OPTIONS = _route("sign_in_options", "GET", "/sign-in", models.SignInOptions)
SIGN_IN = _route("sign_in", "POST", "/sign-in", models.Caller, body=models.SignInBody)
SIGN_OUT = _route("sign_out", "POST", "/sign-out", models.SignedOut)

# A repetition would create a second key.
CREATE_KEY = _route("keys.create", "POST", "/keys", models.CreatedKey, body=models.KeyBody, repeatable=False)
KEYS = _route("keys.list", "GET", "/keys", models.KeyList, query=models.KeyQuery)
REVOKE_KEY = _route("keys.revoke", "DELETE", "/keys/{publicId}", models.Key)
AUDIT_LOG = _route("audit_log.list", "GET", "/audit-log", models.AuditLog, query=models.AuditQuery)

INSTANCES = _route("instances.list", "GET", "/instances", models.InstanceList, query=models.PageQuery)
ACTIVITY = _route("activity", "GET", "/activity", models.Activity, query=models.ActivityQuery)

ALERTS = _route("alerts.list", "GET", "/alerts", models.AlertList, query=models.AlertQuery)
# `events.follow` calls this route, too.
EVENTS = _route("events.list", "GET", "/events", models.EventList, query=models.EventQuery)

LIVE = _route("live", "GET", "/healthz", models.Liveness, prefixed=False)
READY = _route("ready", "GET", "/readyz", models.Readiness, prefixed=False)
HEALTH = _route("health", "GET", "/health", models.Health)
METRICS = _route("metrics", "GET", "/metrics", str, prefixed=False)


def query_values(query: models.Body) -> dict[str, str]:
    """Return the parameters that are set, as text. The text is not percent-encoded yet."""
    names = dict(zip(query.__struct_fields__, query.__struct_encode_fields__, strict=True))
    values = ((encoded, getattr(query, name)) for name, encoded in names.items())
    return {name: _text(value) for name, value in values if value is not None}


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return str(value)
