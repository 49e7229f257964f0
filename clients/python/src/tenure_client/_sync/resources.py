# Generated from ../_async/resources.py by tools/generate_sync.py. Do not edit.
"""The methods for the routes of the service, grouped by resource."""

import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tenure_client import _routes, models
from tenure_client._core import Answer, Id
from tenure_client._routes import Route
from tenure_client._sync import _io
from tenure_client._sync.pages import Pages
from tenure_client._sync.streams import Stream

if TYPE_CHECKING:
    from tenure_client._sync.client import Client

T = TypeVar("T")

HELD_PAUSE_SECONDS = 0.2


class _Resource:
    def __init__(self, client: "Client") -> None:
        self._client = client

    def _get(self, route: Route, kind: type[T], **more: Any) -> T:
        return (self._client._call(route, **more)).decode(kind)

    def _pages(self, route: Route, items: str, query: Any, **path: object) -> Pages[Any, Any]:
        def fetch(cursor: str | None) -> Any:
            asked = msgspec.structs.replace(query, cursor=cursor)
            return self._get(route, route.answer, query=asked, **path)

        return Pages(fetch, items, query.cursor)


class Sessions(_Resource):
    def open(
        self,
        *,
        user: Id,
        tenant: Id,
        capacity: Id,
        kind: int,
        lease_seconds: int | None = None,
        idle_seconds: int | None = None,
        with_token: bool = False,
    ) -> models.OpenedSession:
        """Open a session, or get the live session of this user on this capacity. `client.hold` also keeps it alive."""
        body = models.OpenBody(
            user_object_id=str(user),
            tenant_object_id=str(tenant),
            capacity_id=str(capacity),
            session_kind=kind,
            lease_seconds=lease_seconds,
            idle_seconds=idle_seconds,
            with_token=with_token,
        )
        return (self._open(body)).decode(models.OpenedSession)

    def _open(self, body: models.OpenBody) -> Answer:
        return self._client._call(_routes.OPEN, body=body)

    def heartbeat(self, session_id: Id, *, active: bool = False) -> models.Heartbeat:
        return (self._heartbeat(session_id, active=active)).decode(models.Heartbeat)

    def _heartbeat(self, session_id: Id, *, active: bool) -> Answer:
        body = models.HeartbeatBody(active=active)
        return self._client._call(_routes.HEARTBEAT, body=body, sessionId=session_id)

    def heartbeats(self, session_ids: Sequence[Id], *, active: bool = False) -> models.Heartbeats:
        """Renew up to 1000 sessions. The results are in the order of the ids."""
        body = models.HeartbeatsBody(session_ids=[str(session_id) for session_id in session_ids], active=active)
        return self._get(_routes.HEARTBEATS, models.Heartbeats, body=body)

    def get(self, session_id: Id) -> models.Session:
        return self._get(_routes.SESSION, models.Session, sessionId=session_id)

    def history(
        self, session_id: Id, *, limit: int | None = None, cursor: str | None = None
    ) -> Pages[models.History, models.Fact]:
        """List the facts about a session in the order of time, such as why it ended and how it was billed."""
        query = models.PageQuery(limit=limit, cursor=cursor)
        return self._pages(_routes.HISTORY, "facts", query, sessionId=session_id)

    def end(self, session_id: Id) -> models.EndedSession:
        return self._get(_routes.END, models.EndedSession, sessionId=session_id)

    def end_matching(
        self,
        *,
        tenant: Id | None = None,
        user: Id | None = None,
        capacity: Id | None = None,
        kind: int | None = None,
        state: str | None = None,
        session_ids: Sequence[Id] | None = None,
        all: bool = False,  # noqa: A002 - the name of the field
        action_id: Id | None = None,
        limit: int | None = None,
        dry_run: bool = False,
    ) -> models.EndedSessions:
        """End up to `limit` live sessions that match all arguments. `end_all` repeats the request until none is left.

        Without a filter and without ids, `all` must be true. With `dry_run`, the sessions are only counted.
        """
        body = models.EndBody(
            tenant=_text(tenant),
            user=_text(user),
            capacity=_text(capacity),
            kind=kind,
            state=state,
            session_ids=None if session_ids is None else [str(session_id) for session_id in session_ids],
            all=all,
            action_id=None if dry_run and action_id is None else str(action_id or uuid.uuid4()),
            limit=limit,
            dry_run=dry_run,
        )
        return self._get(_routes.END_MATCHING, models.EndedSessions, body=body)

    def end_all(self, **selection: Any) -> Iterator[models.EndedSessions]:
        """End all live sessions that match, and yield each response. Takes the arguments of `end_matching`.

        All requests are one action, with one entry in the audit log. To continue an action that was interrupted, give
        its `action_id` and the same filter. With `dry_run`, there is one request, which only counts.
        """
        only_counts = selection.get("dry_run", False)
        if not only_counts:
            selection["action_id"] = selection.get("action_id") or uuid.uuid4()
        while True:
            answer = self.end_matching(**selection)
            yield answer
            if answer.done or only_counts:
                return
            if answer.ended == 0:
                # Other transactions hold the rows of the remaining sessions, so try again after a pause.
                _io.sleep(self._client._options, HELD_PAUSE_SECONDS)

    def metrics(self) -> models.SessionMetrics:
        return self._get(_routes.SESSION_METRICS, models.SessionMetrics)

    def stream(self, session_id: Id) -> Stream:
        """Attach a stream to a live session."""
        path = f"{_routes.SESSION.path_with(sessionId=session_id)}/stream"
        return Stream(self._client._options, path, None)

    def list(
        self,
        *,
        tenant: Id | None = None,
        user: Id | None = None,
        capacity: Id | None = None,
        kind: int | None = None,
        state: str | None = None,
        active: bool | None = None,
        close_reason: str | None = None,
        order: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Pages[models.SessionList, models.Session]:
        """List sessions, newest first. With `order="lapse"`, list live sessions, earliest deadline first.

        `limit` is the size of a page.
        """
        query = models.SessionQuery(
            tenant=_text(tenant),
            user=_text(user),
            capacity=_text(capacity),
            kind=kind,
            state=state,
            active=active,
            close_reason=close_reason,
            order=order,
            limit=limit,
            cursor=cursor,
        )
        return self._pages(_routes.SESSIONS, "sessions", query)

    def count(
        self,
        *,
        tenant: Id | None = None,
        user: Id | None = None,
        capacity: Id | None = None,
        kind: int | None = None,
        state: str | None = None,
        active: bool | None = None,
        close_reason: str | None = None,
    ) -> models.SessionCount:
        """Count the sessions that match. If `exact` is false, `count` is a lower bound."""
        query = models.MatchQuery(
            tenant=_text(tenant),
            user=_text(user),
            capacity=_text(capacity),
            kind=kind,
            state=state,
            active=active,
            close_reason=close_reason,
        )
        return self._get(_routes.COUNT, models.SessionCount, query=query)


class Capacities(_Resource):
    def set(
        self,
        capacity_id: Id,
        *,
        max_sessions: int | None = None,
        when_full: str = "reject",
        tenant: Id | None = None,
    ) -> models.Capacity:
        """Set the number of seats (None: no limit), what happens when all are taken (`when_full`), and the tenant.

        An omitted argument resets its setting to the default.
        """
        body = models.CapacityBody(max_sessions=max_sessions, when_full=when_full, tenant_object_id=_text(tenant))
        return self._get(_routes.SET_CAPACITY, models.Capacity, body=body, capacityId=capacity_id)

    def get(self, capacity_id: Id) -> models.Capacity:
        return self._get(_routes.CAPACITY, models.Capacity, capacityId=capacity_id)

    def delete(self, capacity_id: Id) -> models.Capacity:
        return self._get(_routes.DELETE_CAPACITY, models.Capacity, capacityId=capacity_id)

    def list(
        self, *, tenant: Id | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Pages[models.CapacityList, models.Capacity]:
        query = models.CapacityQuery(tenant=_text(tenant), limit=limit, cursor=cursor)
        return self._pages(_routes.CAPACITIES, "capacities", query)


class Submissions(_Resource):
    def submit(self, gateway: str, payload: Any, *, idempotency_key: str | None = None) -> models.Accepted:
        """Submit a payload to a gateway.

        All tries of one call have the same idempotency key. Pass your own key, such as an order number, if a later call
        may repeat this one.
        """
        headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
        body = models.SubmitBody(gateway=gateway, payload=payload)
        return self._get(_routes.SUBMIT, models.Accepted, body=body, headers=headers)

    def counts(self) -> models.SubmissionCounts:
        """Count submissions by gateway and state. A count that is not `exact` is a lower bound."""
        return self._get(_routes.SUBMISSION_COUNTS, models.SubmissionCounts)

    def get(self, submission_id: Id) -> models.Submission:
        return self._get(_routes.SUBMISSION, models.Submission, submissionId=submission_id)

    def retry(self, submission_id: Id) -> models.Submission:
        return self._get(_routes.RETRY, models.Submission, submissionId=submission_id)

    def cancel(self, submission_id: Id) -> models.Submission:
        return self._get(_routes.CANCEL, models.Submission, submissionId=submission_id)

    def retry_all(self, *, gateway: str | None = None, state: str | None = None) -> int:
        """Retry every submission that matches, and return their number. Without `state`, only failed ones match."""
        body = models.CommandBody(gateway=gateway, state=state)
        return (self._get(_routes.RETRY_ALL, models.Commanded, body=body)).count

    def cancel_all(self, *, gateway: str | None = None, state: str | None = None) -> int:
        """Cancel every submission that matches, and return their number. Without `state`: pending and failed ones."""
        body = models.CommandBody(gateway=gateway, state=state)
        return (self._get(_routes.CANCEL_ALL, models.Commanded, body=body)).count

    def list(
        self,
        *,
        gateway: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Pages[models.SubmissionList, models.ListedSubmission]:
        query = models.SubmissionQuery(gateway=gateway, state=state, limit=limit, cursor=cursor)
        return self._pages(_routes.SUBMISSIONS, "submissions", query)


class Usage(_Resource):
    def sum(
        self,
        *,
        from_: datetime | None = None,
        to: datetime | None = None,
        tenant: Id | None = None,
        capacity: Id | None = None,
        user: Id | None = None,
        group_by: str | None = None,
        quick: bool | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Pages[models.Usage, models.UsageGroup]:
        """Sum the usage of the span from `from_` to `to`, in groups.

        With `quick`, the server may move one or both ends of the span to a full hour, to read fewer sessions. `from_`
        and `to` of each page are the span that was summed.
        """
        query = models.UsageQuery(
            from_=from_,
            to=to,
            tenant=_text(tenant),
            capacity=_text(capacity),
            user=_text(user),
            group_by=group_by,
            quick=quick,
            limit=limit,
            cursor=cursor,
        )
        return self._pages(_routes.USAGE, "groups", query)

    def windows(
        self, *, limit: int | None = None, cursor: str | None = None
    ) -> Pages[models.UsageWindowList, models.UsageWindow]:
        return self._pages(_routes.WINDOWS, "windows", models.PageQuery(limit=limit, cursor=cursor))

    def window(self, window_id: int) -> models.WholeUsageWindow:
        return self._get(_routes.WINDOW, models.WholeUsageWindow, windowId=window_id)

    def send(self, *, from_: datetime, to: datetime | None = None) -> models.Sent:
        """Send the windows that begin in the span from `from_` to `to` and were cut without a gateway for usage.

        Repeat the call while `complete` of the response is false.
        """
        return self._get(_routes.SEND_WINDOWS, models.Sent, body=models.SendBody(from_=from_, to=to))


class Leases(_Resource):
    def resign(self, name: str) -> models.Lease:
        return self._get(_routes.RESIGN, models.Lease, name=name)

    def history(
        self, name: str, *, limit: int | None = None, cursor: str | None = None
    ) -> Pages[models.TermList, models.Term]:
        """List the terms of one lease, newest first: which instance held the lease, and when."""
        return self._pages(_routes.TERMS, "terms", models.PageQuery(limit=limit, cursor=cursor), name=name)

    def timeline(
        self,
        *,
        from_: datetime | None = None,
        to: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Pages[models.TermList, models.Term]:
        """List the terms of all leases, newest first. Only terms that overlap the span `from_` to `to` are listed."""
        query = models.TermQuery(from_=from_, to=to, limit=limit, cursor=cursor)
        return self._pages(_routes.TIMELINE, "terms", query)

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> Pages[models.LeaseList, models.Lease]:
        return self._pages(_routes.LEASES, "leases", models.PageQuery(limit=limit, cursor=cursor))


class Jobs(_Resource):
    def run(self, name: str) -> models.Job:
        return self._get(_routes.RUN, models.Job, name=name)

    def pause(self, name: str) -> models.Job:
        return self._get(_routes.PAUSE, models.Job, name=name)

    def resume(self, name: str) -> models.Job:
        return self._get(_routes.RESUME, models.Job, name=name)

    def runs(
        self, name: str, *, limit: int | None = None, cursor: str | None = None
    ) -> Pages[models.RunList, models.Run]:
        return self._pages(_routes.RUNS, "runs", models.PageQuery(limit=limit, cursor=cursor), name=name)

    def list(self, *, limit: int | None = None, cursor: str | None = None) -> Pages[models.JobList, models.Job]:
        return self._pages(_routes.JOBS, "jobs", models.PageQuery(limit=limit, cursor=cursor))


class Keys(_Resource):
    def create(
        self,
        name: str,
        role: str,
        *,
        expires_at: datetime | None = None,
        others_expire_at: datetime | None = None,
        tenant: Id | None = None,
    ) -> models.CreatedKey:
        """Create an API key. Only this response contains the key. If you lose it, revoke it and create another one.

        With `others_expire_at`, the other live keys of the same name expire at this instant at the latest.
        """
        body = models.KeyBody(
            name=name,
            role=role,
            expires_at=expires_at,
            others_expire_at=others_expire_at,
            tenant_object_id=_text(tenant),
        )
        return self._get(_routes.CREATE_KEY, models.CreatedKey, body=body)

    def revoke(self, public_id: str) -> models.Key:
        return self._get(_routes.REVOKE_KEY, models.Key, publicId=public_id)

    def list(
        self, *, name: str | None = None, limit: int | None = None, cursor: str | None = None
    ) -> Pages[models.KeyList, models.Key]:
        return self._pages(_routes.KEYS, "keys", models.KeyQuery(name=name, limit=limit, cursor=cursor))


class AuditLog(_Resource):
    def list(
        self,
        *,
        subject: str | None = None,
        action: str | None = None,
        target: str | None = None,
        from_: datetime | None = None,
        to: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Pages[models.AuditLog, models.AuditEntry]:
        query = models.AuditQuery(
            subject=subject, action=action, target=target, from_=from_, to=to, limit=limit, cursor=cursor
        )
        return self._pages(_routes.AUDIT_LOG, "entries", query)


class Instances(_Resource):
    def list(
        self, *, limit: int | None = None, cursor: str | None = None
    ) -> Pages[models.InstanceList, models.Instance]:
        """List the instances of the installation, with the leases that each one holds as leader."""
        return self._pages(_routes.INSTANCES, "instances", models.PageQuery(limit=limit, cursor=cursor))


class Alerts(_Resource):
    def list(
        self,
        *,
        name: str | None = None,
        subject: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> Pages[models.AlertList, models.Alert]:
        """List alerts, newest first. `state` is `active` or `cleared`."""
        query = models.AlertQuery(name=name, subject=subject, state=state, limit=limit, cursor=cursor)
        return self._pages(_routes.ALERTS, "alerts", query)


def _text(value: Id | None) -> str | None:
    return None if value is None else str(value)
