"""What happens to a request: refused, failed as told, or counted; and the control routes below `/_`."""

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import parse_qsl

import msgspec

from tenure import signing
from tenure.clock import wall_microseconds
from tenure.errors import ConfigurationError, TenureError
from tenure.receiver.faults import Chooser, Faults, Way, read_faults
from tenure.receiver.ledger import Delivery, Entry, LedgerFailed, Outcome, Passed
from tenure.receiver.messages import Answer, Request, text
from tenure.receiver.playing import is_met
from tenure.receiver.recorder import Recorder

CONTROL = "/_"
KEY_HEADER = "idempotency-key"
LIMIT_DEFAULT = 100
LIMIT_MAX = 1000

_KEY = re.compile(r"[!-~]{1,255}")
_WHOLE = re.compile(r"[0-9]{1,18}")
_STATUSES = {Outcome.COUNTED: 200, Outcome.DUPLICATE: 200, Outcome.CONFLICT: 422}


class Refused(TenureError):
    """The request is not taken, and the answer says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Reaction(NamedTuple):
    """The answer, and the way in which it fails to arrive."""

    answer: Answer
    way: Way | None = None


class _Page(msgspec.Struct):
    keys: list[Entry]
    next: int | None
    """What `after` must be for the next page; none if this is the last."""


class Receiver:
    def __init__(self, recorder: Recorder, secrets: Sequence[str], faults: Faults) -> None:
        self._recorder = recorder
        self._secrets = secrets
        self._chooser = Chooser(faults)

    async def react(self, request: Request) -> Reaction:
        try:
            if request.path.startswith(CONTROL):
                return Reaction(await self._control(request))
            return await self._take(request)
        except Refused as refusal:
            return Reaction(text(refusal.status, str(refusal)))
        except LedgerFailed as failure:
            return Reaction(text(503, str(failure)))

    def note_unreadable(self) -> None:
        self._recorder.note(Passed(requests=1, refused=1))

    async def _take(self, request: Request) -> Reaction:
        if request.method != "POST":
            raise Refused(405, "only POST is taken here")
        try:
            key = self._checked_key(request)
        except Refused:
            self._recorder.note(Passed(requests=1, refused=1))
            raise
        way = self._chooser.choose(key)
        if way is not None and not way.counted:
            self._recorder.note(Passed(requests=1, failed=1))
            return Reaction(text(200, "not counted"), way)
        return await self._count(Delivery(key, request.path, request.body, wall_microseconds()), way)

    async def _count(self, delivery: Delivery, way: Way | None) -> Reaction:
        outcome = await self._recorder.record(delivery)
        usual = text(_STATUSES[outcome], outcome.value)
        if way is None or not is_met(way, outcome):
            return Reaction(usual)
        self._recorder.note(Passed(failed=1))
        return Reaction(usual, way)

    def _checked_key(self, request: Request) -> str:
        key = request.headers.get(KEY_HEADER, "")
        if not _KEY.fullmatch(key):
            raise Refused(400, "Idempotency-Key must be given: 1 to 255 printable ASCII characters without spaces")
        if self._secrets:
            self._check_signature(request, key)
        return key

    def _check_signature(self, request: Request, key: str) -> None:
        try:
            signing.verify(self._secrets, request.headers, request.body, wall_microseconds() / 1_000_000)
        except signing.WrongSignature as refusal:
            raise Refused(401, str(refusal)) from refusal
        # Only the id is signed: with another key, a copied request would be counted again.
        if key != request.headers[signing.ID]:
            raise Refused(401, f"Idempotency-Key must be the signed {signing.ID}")

    async def _control(self, request: Request) -> Answer:
        match request.method, request.path:
            case "GET", "/_totals":
                return _json(await self._recorder.totals())
            case "GET", "/_keys":
                return _json(await self._page(request.query))
            case "GET", "/_faults":
                return _json(self._chooser.faults)
            case "PUT", "/_faults":
                self._chooser = Chooser(_faults_in(request.body))
                return _json(self._chooser.faults)
        raise Refused(404, "there are GET /_totals, GET /_keys, GET /_faults and PUT /_faults")

    async def _page(self, query: str) -> _Page:
        given = dict(parse_qsl(query, keep_blank_values=True))
        after = _whole(given, "after", 0, 0, 1 << 62)
        limit = _whole(given, "limit", LIMIT_DEFAULT, 1, LIMIT_MAX)
        entries = await self._recorder.page(after, limit)
        return _Page(entries, entries[-1].position if len(entries) == limit else None)


def _whole(given: dict[str, str], name: str, default: int, lowest: int, highest: int) -> int:
    words = given.get(name, str(default))
    if not _WHOLE.fullmatch(words) or not lowest <= int(words) <= highest:
        raise Refused(400, f"{name} must be a whole number from {lowest} to {highest}")
    return int(words)


def _faults_in(body: bytes) -> Faults:
    try:
        return read_faults(body)
    except ConfigurationError as error:
        raise Refused(400, str(error)) from error


def _json(content: object) -> Answer:
    return Answer(200, msgspec.json.encode(content) + b"\n", (("content-type", "application/json"),))
