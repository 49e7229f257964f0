"""Handles a request: refuses it, or selects a fault if any applies, and records the delivery unless the fault prevents
that. Also serves the control routes below `/_`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec

from tenure import signing
from tenure.clock import wall_microseconds
from tenure.errors import ConfigurationError, TenureError
from tenure.receiver.fault_playback import applies
from tenure.receiver.faults import Chooser, Faults, Way, read_faults
from tenure.receiver.ledger import Delivery, DeliveryOutcome, Entry, EventEntry, LedgerFailed, RequestCounts
from tenure.receiver.messages import Request, Response, text_response
from tenure.receiver.recorder import Recorder

CONTROL = "/_"
KEY_HEADER = "idempotency-key"
RECEIPT_HEADER = "tenure-receipt"
LIMIT_DEFAULT = 100
LIMIT_MAX = 1000

_KEY = re.compile(r"[!-~]{1,255}")
_WHOLE_NUMBER = re.compile(r"[0-9]{1,18}")
_STATUSES = {DeliveryOutcome.COUNTED: 200, DeliveryOutcome.DUPLICATE: 200, DeliveryOutcome.CONFLICT: 422}


class Refused(TenureError):
    """The request is refused with this status. The message is the body of the response."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Handled(NamedTuple):
    """The correct response, and the fault that is played instead, if any."""

    response: Response
    fault: Way | None = None


class _Page(msgspec.Struct):
    keys: list[Entry]
    next: int | None
    """The value of `after` for the next page; None if this page has fewer entries than `limit`, so it is the last."""


class _EventPage(msgspec.Struct):
    events: list[EventEntry]
    next: int | None


class Receiver:
    def __init__(self, recorder: Recorder, secrets: Sequence[str], faults: Faults) -> None:
        self._recorder = recorder
        self._secrets = secrets
        self._chooser = Chooser(faults)

    async def handle(self, request: Request) -> Handled:
        try:
            if request.path.startswith(CONTROL):
                return Handled(await self._control(request))
            return await self._receive(request)
        except Refused as refusal:
            return Handled(text_response(refusal.status, str(refusal)))
        except LedgerFailed as failure:
            return Handled(text_response(503, str(failure)))

    def count_unreadable(self) -> None:
        self._recorder.add_counts(RequestCounts(requests=1, refused=1))

    async def _receive(self, request: Request) -> Handled:
        if request.method != "POST":
            raise Refused(405, "only POST is allowed")
        try:
            key = self._checked_key(request)
        except Refused:
            self._recorder.add_counts(RequestCounts(requests=1, refused=1))
            raise
        fault = self._chooser.choose(key)
        if fault is not None and not fault.counted:
            self._recorder.add_counts(RequestCounts(requests=1, failed=1))
            return Handled(text_response(200, "not counted"), fault)
        return await self._count(Delivery(key, request.path, request.body, wall_microseconds()), fault)

    async def _count(self, delivery: Delivery, fault: Way | None) -> Handled:
        outcome = await self._recorder.record(delivery)
        receipt = [] if outcome is DeliveryOutcome.CONFLICT else [(RECEIPT_HEADER, f"sha256={delivery.digest}")]
        response = text_response(_STATUSES[outcome], outcome.value, *receipt)
        if fault is None or not applies(fault, outcome):
            return Handled(response)
        self._recorder.add_counts(RequestCounts(failed=1))
        return Handled(response, fault)

    def _checked_key(self, request: Request) -> str:
        key = request.headers.get(KEY_HEADER, "")
        if not _KEY.fullmatch(key):
            raise Refused(400, "Idempotency-Key is required: 1 to 255 printable ASCII characters without spaces")
        if self._secrets:
            self._verify_signature(request, key)
        return key

    def _verify_signature(self, request: Request, key: str) -> None:
        try:
            signing.verify(self._secrets, request.headers, request.body, wall_microseconds() / 1_000_000)
        except signing.WrongSignature as refusal:
            raise Refused(401, str(refusal)) from refusal
        # The signature covers the header `webhook-id`, not the key. Without this check, a copy of a signed request with
        # another key would be counted as another delivery.
        if key != request.headers[signing.ID]:
            raise Refused(401, f"Idempotency-Key must equal the signed {signing.ID}")

    async def _control(self, request: Request) -> Response:
        match request.method, request.path:
            case "GET", "/_totals":
                return _json_response(await self._recorder.totals())
            case "GET", "/_keys":
                return _json_response(await self._page(request.query))
            case "GET", "/_events":
                return _json_response(await self._event_page(request.query))
            case "GET", "/_faults":
                return _json_response(self._chooser.faults)
            case "PUT", "/_faults":
                self._chooser = Chooser(_parse_faults(request.body))
                return _json_response(self._chooser.faults)
        routes = "GET /_totals, GET /_keys, GET /_events, GET /_faults, PUT /_faults"
        raise Refused(404, f"not found; the control routes are {routes}")

    async def _event_page(self, query: str) -> _EventPage:
        after, limit = _bounds(query)
        events = await self._recorder.events(after, limit)
        return _EventPage(events, events[-1].position if len(events) == limit else None)

    async def _page(self, query: str) -> _Page:
        after, limit = _bounds(query)
        entries = await self._recorder.page(after, limit)
        return _Page(entries, entries[-1].position if len(entries) == limit else None)


def _bounds(query: str) -> tuple[int, int]:
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    after = _whole_number(parameters, "after", 0, 0, 1 << 62)
    return after, _whole_number(parameters, "limit", LIMIT_DEFAULT, 1, LIMIT_MAX)


def _whole_number(parameters: dict[str, str], name: str, default: int, minimum: int, maximum: int) -> int:
    text = parameters.get(name, str(default))
    if not _WHOLE_NUMBER.fullmatch(text) or not minimum <= int(text) <= maximum:
        raise Refused(400, f"{name} must be a whole number from {minimum} to {maximum}")
    return int(text)


def _parse_faults(body: bytes) -> Faults:
    try:
        return read_faults(body)
    except ConfigurationError as error:
        raise Refused(400, str(error)) from error


def _json_response(content: object) -> Response:
    return Response(200, msgspec.json.encode(content) + b"\n", (("content-type", "application/json"),))
