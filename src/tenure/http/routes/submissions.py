"""The submission routes: submit a payload to a gateway; list, read, count, retry and cancel submissions."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tenure.access.caller import Caller, CallerKind
from tenure.access.grants import CLIENTS, OPERATORS, READERS, narrowed
from tenure.domain.leases import NAME_MAX
from tenure.domain.submissions import (
    KEY_MAX,
    Attempt,
    AttemptOutcome,
    Submission,
    SubmissionCommand,
    SubmissionFilter,
    SubmissionState,
)
from tenure.errors import (
    AlreadyDelivered,
    FieldError,
    Forbidden,
    GatewayReserved,
    Invalid,
    KeyReused,
    NotFound,
    Problem,
    TooLarge,
    Unavailable,
    UnsupportedMediaType,
    UsageNotCancellable,
)
from tenure.http.answers import Answer, refusal
from tenure.http.fields import IdCursor, Instant, PageLimit, Uuid, instant
from tenure.http.pages import cursor_of_id, id_of, page
from tenure.http.pipeline import Call, Hot, Respond, Route
from tenure.ids import canonical_id
from tenure.store.contract import Store
from tenure.submissions.accept import Acceptor, SubmitOutcome, Submitted

BODY_MAX_BYTES = 1024 * 1024

GatewayName = Annotated[
    str,
    Meta(
        # Allow only printable ASCII: databases compare other characters differently, and some cannot store all of them.
        pattern="^[ -~]+$",
        max_length=NAME_MAX,
        extra={"must": "must be the name of a configured gateway"},
    ),
]
Key = Annotated[
    str,
    Meta(
        pattern="^[!-~]([ -~]*[!-~])?$",
        max_length=KEY_MAX,
        extra={"must": f"must be printable ASCII, at most {KEY_MAX} characters"},
    ),
]
State = Annotated[SubmissionState, Meta(extra={"must": f"must be {', '.join(SubmissionState)}"})]
CommandedState = Annotated[
    Literal["pending", "failed", "cancelled"], Meta(extra={"must": "must be pending, failed, cancelled"})
]


REFUSALS = {
    SubmissionCommand.RETRY: (AlreadyDelivered,),
    SubmissionCommand.CANCEL: (AlreadyDelivered, UsageNotCancellable),
}


class SubmitBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    gateway: GatewayName
    payload: msgspec.Raw

    def __post_init__(self) -> None:
        """Checks that the payload is valid UTF-8: msgspec does not check raw JSON, and the payload is sent as JSON."""
        str(self.payload, "utf-8")


class SubmitHeaders(msgspec.Struct, frozen=True):
    idempotency_key: Key = msgspec.field(name="Idempotency-Key")


class AcceptedAnswer(msgspec.Struct, frozen=True, rename="camel"):
    submission_id: Uuid
    state: SubmissionState


class ListedSubmission(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    submission_id: Uuid
    gateway: str
    state: SubmissionState
    attempt_count: int
    next_attempt_at: Instant | None
    last_error: str | None
    request_id: str | None
    created_at: Instant
    ended_at: Instant | None


class AttemptAnswer(msgspec.Struct, frozen=True, rename="camel"):
    number: int
    epoch: int
    started_at: Instant
    ended_at: Instant | None
    outcome: AttemptOutcome | None
    status: int | None
    error: str | None
    early: bool
    receipt: bool


class SubmissionAnswer(ListedSubmission, frozen=True, rename="camel", kw_only=True):
    attempts: list[AttemptAnswer]


class SubmissionList(msgspec.Struct, frozen=True, rename="camel"):
    submissions: list[ListedSubmission]
    count: int
    next_cursor: str | None


class SubmissionCountAnswer(msgspec.Struct, frozen=True, rename="camel"):
    gateway: str
    state: SubmissionState
    count: int
    exact: bool


class SubmissionCounts(msgspec.Struct, frozen=True, rename="camel"):
    counts: list[SubmissionCountAnswer]


class CommandBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    gateway: GatewayName | None = None
    state: CommandedState | None = None


class CommandedAnswer(msgspec.Struct, frozen=True, rename="camel"):
    count: int


class SubmissionQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    gateway: GatewayName | None = None
    state: State | None = None
    limit: PageLimit = 100
    cursor: IdCursor | None = None


class SubmissionRoutes:
    def __init__(self, store: Store, acceptor: Acceptor, prefix: str) -> None:
        self._store = store
        self._acceptor = acceptor
        self._path = f"{prefix}/submissions"

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="POST",
                path="/submissions",
                handler=Hot(self.submit),
                grants=narrowed(CLIENTS),
                tag="submissions",
                summary="Submit a payload to a gateway",
                description=(
                    "Tenure sends the bytes of the payload unchanged. Repeating the request with the same key "
                    "and payload returns the same submission."
                ),
                headers=SubmitHeaders,
                body=SubmitBody,
                body_max_bytes=BODY_MAX_BYTES,
                answers={202: AcceptedAnswer},
                refusals=(
                    Invalid,
                    GatewayReserved,
                    NotFound,
                    TooLarge,
                    UnsupportedMediaType,
                    KeyReused,
                    Unavailable,
                ),
            ),
            Route(
                method="GET",
                path="/submissions",
                handler=self.list,
                grants=READERS,
                tag="submissions",
                summary="List submissions, newest first",
                query=SubmissionQuery,
                answers={200: SubmissionList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/submissions/counts",
                handler=self.counts,
                grants=READERS,
                tag="submissions",
                summary="Count submissions by gateway and state",
                description=(
                    "Counts up to a limit: `exact` is false if there are more. "
                    "Pending and failed submissions are counted first."
                ),
                answers={200: SubmissionCounts},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="GET",
                path="/submissions/{submissionId}",
                handler=self.get,
                grants=narrowed(READERS),
                tag="submissions",
                summary="Read a submission and its attempts",
                answers={200: SubmissionAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
            self._command_one(
                SubmissionCommand.RETRY,
                "Retry a submission now",
                "Resets the count of failed attempts. If an attempt is in progress, the retry begins when that "
                "attempt has failed.",
            ),
            self._command_one(
                SubmissionCommand.CANCEL,
                "Cancel a submission",
                "An attempt in progress may still deliver the submission.",
            ),
            self._command_many(
                SubmissionCommand.RETRY,
                "Retry matching submissions",
                "Retries only failed submissions, unless another state is given. At least one filter is required.",
            ),
            self._command_many(
                SubmissionCommand.CANCEL,
                "Cancel matching submissions",
                "Cancels pending and failed submissions, unless a state is given. At least one filter is required.",
            ),
        ]

    def _command_one(self, command: SubmissionCommand, summary: str, description: str) -> Route:
        async def handle(call: Call) -> Answer:
            return await self.command(command, call)

        return Route(
            method="POST",
            path=f"/submissions/{{submissionId}}/{command.value}",
            handler=handle,
            grants=narrowed(OPERATORS),
            tag="submissions",
            summary=summary,
            description=description,
            answers={200: SubmissionAnswer},
            refusals=(Invalid, NotFound, *REFUSALS[command], Unavailable),
        )

    def _command_many(self, command: SubmissionCommand, summary: str, description: str) -> Route:
        async def handle(call: Call) -> Answer:
            return await self.command_all(command, call)

        return Route(
            method="POST",
            path=f"/submissions/{command.value}",
            handler=handle,
            grants=OPERATORS,
            tag="submissions",
            summary=summary,
            description=description,
            body=CommandBody,
            answers={200: CommandedAnswer},
            refusals=(Invalid, TooLarge, UnsupportedMediaType, Unavailable),
        )

    def submit(self, call: Call, respond: Respond) -> None:
        body: SubmitBody = call.body

        def done(result: Submitted | Exception) -> None:
            respond(result if isinstance(result, Exception) else _submit_answer(body.gateway, result))

        caller = submitter(call.caller)
        key, payload = call.headers.idempotency_key, bytes(body.payload)
        self._acceptor.submit(body.gateway, caller, key, payload, done, call.request_id)

    async def list(self, call: Call) -> Answer:
        query: SubmissionQuery = call.query
        before = None if query.cursor is None else id_of(query.cursor)
        criteria = SubmissionFilter(gateway=query.gateway, state=query.state and query.state.value)
        found = await self._store.list_submissions(criteria, before, query.limit + 1)
        return page(found, query, self._path, lambda each: cursor_of_id(each.submission_id), _listed)

    async def counts(self, _call: Call) -> Answer:
        found = await self._store.count_submissions()
        return Answer(
            SubmissionCounts(
                [
                    SubmissionCountAnswer(each.gateway, SubmissionState(each.state), each.count, each.exact)
                    for each in found
                ]
            )
        )

    async def get(self, call: Call) -> Answer:
        found = await self._store.get_submission(_submission_id(call), _owner(call.caller))
        if found is None:
            raise _unknown(call)
        return Answer(submission_answer(*found))

    async def command(self, command: SubmissionCommand, call: Call) -> Answer:
        submission_id = _submission_id(call)
        owner = _owner(call.caller)
        done = await self._acceptor.command(command, submission_id, owner, call.actor)
        if done is None:
            raise _unknown(call)
        found = await self._store.get_submission(submission_id, owner)
        if found is None:
            raise _unknown(call)
        if not done:
            raise _refused(found[0])
        return Answer(submission_answer(*found))

    async def command_all(self, command: SubmissionCommand, call: Call) -> Answer:
        body: CommandBody = call.body
        if body.gateway is None and body.state is None:
            raise Invalid(FieldError("body", "must have gateway, state or both"))
        criteria = SubmissionFilter(gateway=body.gateway, state=body.state)
        count = await self._acceptor.command_all(command, criteria, call.actor)
        return Answer(CommandedAnswer(count))


def submitter(caller: Caller) -> str:
    """Returns the name under which the caller's submissions are stored. Each name has its own idempotency keys.

    For a credential that is bound to a tenant, the name contains the tenant, because an API key of another tenant can
    have the same name.
    """
    if caller.kind is CallerKind.ANONYMOUS:
        return ""
    if caller.scope.tenant is None:
        return caller.name
    bound = f"{caller.scope.tenant}/{caller.kind.value}/"
    # Only the subject of a token can be too long.
    fits = len(bound) + len(caller.name) <= NAME_MAX
    return bound + (caller.name if fits else sha256(caller.name.encode()).hexdigest())


def _owner(caller: Caller) -> str | None:
    """Returns the submitter to whose submissions the caller is limited; None if the caller may use all submissions."""
    return submitter(caller) if caller.scope.is_bound else None


def _refused(submission: Submission) -> Problem:
    if submission.state == SubmissionState.DELIVERED:
        return AlreadyDelivered(f"submission {submission.submission_id} has been delivered")
    return UsageNotCancellable(f"submission {submission.submission_id} contains usage, which must be delivered")


def _submit_answer(gateway: str, submitted: Submitted) -> Answer:
    match submitted.outcome:
        case SubmitOutcome.ACCEPTED:
            return Answer(AcceptedAnswer(submitted.submission_id, SubmissionState(submitted.state)), 202)
        case SubmitOutcome.KEY_REUSED:
            return refusal(KeyReused("this Idempotency-Key was used for another payload"))
        case SubmitOutcome.GATEWAY_RESERVED:
            return refusal(GatewayReserved(f"gateway {gateway} is reserved for Tenure"))
        case SubmitOutcome.UNKNOWN_GATEWAY:
            return refusal(NotFound(f"gateway {gateway} is not configured"))


def _listed(submissions: Sequence[Submission], count: int, cursor: str | None) -> SubmissionList:
    return SubmissionList([ListedSubmission(**_listed_fields(each)) for each in submissions], count, cursor)


def submission_answer(submission: Submission, attempts: Sequence[Attempt]) -> SubmissionAnswer:
    return SubmissionAnswer(attempts=[_attempt(attempt) for attempt in attempts], **_listed_fields(submission))


def _listed_fields(submission: Submission) -> dict[str, Any]:
    return {
        "submission_id": submission.submission_id,
        "gateway": submission.gateway,
        "state": submission.state,
        "attempt_count": submission.attempts,
        "next_attempt_at": submission.next_attempt_at and instant(submission.next_attempt_at),
        "last_error": submission.last_error,
        "request_id": submission.request_id,
        "created_at": instant(submission.created_at),
        "ended_at": submission.ended_at and instant(submission.ended_at),
    }


def _attempt(attempt: Attempt) -> AttemptAnswer:
    return AttemptAnswer(
        attempt.number,
        attempt.epoch,
        instant(attempt.started_at),
        attempt.ended_at and instant(attempt.ended_at),
        AttemptOutcome(attempt.outcome) if attempt.outcome else None,
        attempt.status,
        attempt.error,
        early=attempt.was_due_at is not None,
        receipt=attempt.has_receipt,
    )


def _submission_id(call: Call) -> str:
    """Returns the id in the path. Raises `NotFound` for a malformed id."""
    canonical = canonical_id(call.path["submissionId"])
    if canonical is None:
        raise _unknown(call)
    return canonical


def _unknown(call: Call) -> Problem:
    """Returns the problem for a submission that does not exist. A caller who is bound to a tenant gets the same problem
    for the submission of another caller, and so cannot find out whether that submission exists.
    """
    if call.caller.scope.is_bound:
        return Forbidden("this credential is bound to a tenant, and may use only the submissions that it has submitted")
    return NotFound(f"submission {call.path['submissionId'][:64]} does not exist")
