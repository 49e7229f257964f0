"""The parts that the sync and the async client share: options, the key, raw responses, and when to retry a request."""

import os
import random
from collections.abc import Callable, Generator, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit
from uuid import UUID

import httpx2
import msgspec

from tenure_client._clock import Clock, SystemClock
from tenure_client.errors import (
    RETRIED_STATUSES,
    ConfigurationError,
    NotSent,
    Problem,
    RateLimited,
    SessionLimit,
    TenureError,
    TimedOut,
    TooManyFailures,
    TransportError,
    UnexpectedAnswer,
)

T = TypeVar("T")
Id = str | UUID
KeySource = str | Callable[[], str]

DEFAULT_URL = "http://127.0.0.1:8080"
# Times are in seconds.
TIMEOUT = 10.0
MAX_RETRIES = 4
RETRY_BUDGET = 30.0
HEARTBEAT_TIMEOUT = 3.0
BACKOFF_FIRST = 0.1
BACKOFF_MAX = 5.0
BACKOFF_DOUBLINGS = 10
SESSION_TOKEN = "tns_"  # noqa: S105, the prefix, not a token
USER_AGENT = "tenure-client/0.1.0"
CAMEL_CASE = {"Tenure-JSON-Case": "camel"}
"""With this header, an instance responds in camelCase even if its `json_case` is `snake`."""


class Key(httpx2.Auth):
    """The credential, or a function that is called for each request and returns it. No `repr` shows the credential."""

    def __init__(self, source: KeySource | None) -> None:
        if isinstance(source, str) and not (source.isascii() and source.isprintable() and source.strip()):
            raise ConfigurationError("the key is empty, or has characters that no key has")
        self._source = source

    def __repr__(self) -> str:
        return "Key(None)" if self._source is None else "Key([redacted])"

    def header(self) -> dict[str, str]:
        if self._source is None:
            return {}
        return {"Authorization": f"Bearer {self._source if isinstance(self._source, str) else self._source()}"}

    def is_session_token(self) -> bool:
        return isinstance(self._source, str) and self._source.startswith(SESSION_TOKEN)

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers.update(self.header())
        yield request


class Options(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    key: Key
    timeout: float = TIMEOUT
    max_retries: int = MAX_RETRIES
    retry_budget: float = RETRY_BUDGET
    heartbeat_timeout: float = HEARTBEAT_TIMEOUT
    headers: Mapping[str, str] = {}
    verify: Any = True
    transport: Any = None
    clock: Clock = SystemClock()
    on_response: Callable[["Answer"], None] | None = None

    def changed(self, changes: Mapping[str, Any]) -> "Options":
        unknown = set(changes) - {"key", "timeout", "max_retries", "retry_budget", "headers", "on_response"}
        if unknown:
            raise TypeError(f"with_options cannot change: {', '.join(sorted(unknown))}")
        made = dict(changes)
        if "key" in made:
            made["key"] = Key(made["key"])
        return msgspec.structs.replace(self, **made)

    def address_of(self, path: str, *, prefixed: bool = True) -> str:
        if prefixed:
            return self.url + path
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}{path}"


def options_from(url: str | None, key: KeySource | None, settings: Mapping[str, Any]) -> Options:
    """Return the options. Without `url`, they use `TENURE_URL`, or DEFAULT_URL if `TENURE_URL` is not set. Without
    `key`, they use `TENURE_KEY`, or no credential if `TENURE_KEY` is not set.
    """
    address = (url or os.environ.get("TENURE_URL") or DEFAULT_URL).rstrip("/")
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError("the url must be like https://tenure.example or http://127.0.0.1:8080/prefix")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError("the url must not contain a user or a password; use the key")
    return Options(url=address, key=Key(key or os.environ.get("TENURE_KEY") or None), **settings)


class Answer(msgspec.Struct, frozen=True):
    """A raw response."""

    status: int
    headers: httpx2.Headers
    content: bytes
    sent_at: float
    """The time on the client's clock just before this request was sent."""

    @property
    def request_id(self) -> str | None:
        value: str | None = self.headers.get("x-request-id")
        return value

    def json(self) -> Any:
        return msgspec.json.decode(self.content)

    def decode(self, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(self.content, type=kind)
        except msgspec.DecodeError as error:
            raise UnexpectedAnswer(
                f"the answer is not a {kind.__name__}: {error}", status=self.status, request_id=self.request_id
            ) from None


def transport_error(error: Exception) -> TransportError:
    """Convert an error of the HTTP library. Raise the result `from None`: the original contains the credential."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return NotSent(text)
    if isinstance(error, httpx2.TimeoutException | TimeoutError):
        return TimedOut(text)
    return TransportError(text)


class RetryChain:
    """Decides how long to wait before the next try of one request: full jitter, within a total budget of time."""

    def __init__(self, options: Options, began: float, *, repeatable: bool) -> None:
        self._options = options
        self._deadline = began + options.retry_budget
        self._repeatable = repeatable
        self._tries = 0

    def timeout(self, now: float) -> float:
        return max(min(self._options.timeout, self._deadline - now), 0.1)

    def delay(self, error: TenureError, now: float) -> float | None:
        """Return the seconds until the next try, or None if the request must not be tried again."""
        self._tries += 1
        if self._tries > self._options.max_retries or not may_repeat(error, repeatable=self._repeatable):
            return None
        pause = pause_before(self._tries, error)
        return pause if now + pause < self._deadline else None


def pause_before(repetition: int, error: TenureError | None) -> float:
    """Return the seconds to wait before the repetition with this number, from 1: full jitter, plus the `Retry-After` of
    the response.
    """
    most = min(BACKOFF_MAX, BACKOFF_FIRST * 2 ** min(repetition, BACKOFF_DOUBLINGS))
    pause = random.uniform(0, most)  # noqa: S311
    if isinstance(error, Problem) and error.retry_after is not None:
        pause += error.retry_after
    return pause


def may_repeat(error: TenureError, *, repeatable: bool) -> bool:
    if isinstance(error, NotSent | RateLimited):
        return True  # The request was certainly not carried out.
    if isinstance(error, SessionLimit | TooManyFailures):
        return False  # First a seat must become free, or the key must be replaced.
    if isinstance(error, Problem):
        return repeatable and error.status in RETRIED_STATUSES
    return repeatable and isinstance(error, TransportError)
