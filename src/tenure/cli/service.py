"""Calls a running service, for all commands that have the flags `--url`, `--key` and `--context`."""

import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NamedTuple, ParamSpec, Self

import typer

from tenure.cli.exits import ExitCode, fail
from tenure.cli.flags import checked_key, checked_url
from tenure.cli.output import JsonList, host_now, note, print_json
from tenure.errors import ConfigurationError

if TYPE_CHECKING:
    from tenure_client import Answer, Problem
    from tenure_client.errors import TransportError

P = ParamSpec("P")

DEFAULT_URL = "http://127.0.0.1:8080"
TIMEOUT_SECONDS = 30.0
RETRIES = 2
PAGE = 500

UrlFlag = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="The URL of the service, including its prefix.  [TENURE_URL, or the context in use]",
        metavar="URL",
    ),
]
KeyFlag = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="The API key. Other users of this host can read flags: set TENURE_KEY or use a context instead.",
        metavar="KEY",
    ),
]
ContextFlag = Annotated[
    str | None,
    typer.Option("--context", help="The name of a service, see `tenure contexts`.  [TENURE_CONTEXT]", metavar="NAME"),
]
CONNECTION_FLAGS = ("--url", "--key", "--context")


class Target(NamedTuple):
    """The service to call. Its `repr` does not show the key."""

    url: str
    key: str | None

    def __repr__(self) -> str:
        return f"Target({self.url!r})"


def target_of(url: str | None, key: str | None, context: str | None) -> Target:
    """Choose the service by the first of these that is given: `--url`, `--context`, `TENURE_URL`, `TENURE_CONTEXT`, the
    context in use. If none is given, it is the service at DEFAULT_URL.

    A key from the file of contexts is sent to the URL of its context only.
    """
    if url is not None and context is not None:
        raise ConfigurationError("context: cannot be combined with --url")
    env = os.environ
    address, stored = url, None
    if address is None and context is None:
        address = env.get("TENURE_URL") or None
    if address is None:
        address, stored = _of_context(context or env.get("TENURE_CONTEXT") or None)
    given = key if key is not None else stored or env.get("TENURE_KEY") or None
    return Target(checked_url(address), None if given is None else checked_key(given))


def _of_context(name: str | None) -> tuple[str, str | None]:
    from tenure.cli.contexts import read_contexts  # noqa: PLC0415

    contexts = read_contexts()
    name = name or contexts.current
    if name is None:
        return DEFAULT_URL, None
    found = contexts.get(name)
    return found.url, found.key


class Service:
    """The service that a command calls: a client, and the raw JSON of its last answer."""

    def __init__(self, target: Target, *, timeout: float = TIMEOUT_SECONDS, retries: int = RETRIES) -> None:
        from tenure_client import Client  # noqa: PLC0415 - a wrong flag is reported before the import, which takes time

        self.url = target.url
        self.has_key = target.key is not None
        self._last: Answer | None = None
        self._ahead: timedelta | None = None
        self._last_words: str | None = None
        # For http, do not load the CA certificates: loading takes 40 ms, and the client follows no redirect to https.
        verify = target.url.startswith("https:")
        self.client = Client(
            target.url, target.key, timeout=timeout, max_retries=retries, verify=verify, on_response=self._keep
        )

    def _keep(self, answer: "Answer") -> None:
        self._last = answer

    def now(self) -> datetime:
        """The current time by the clock of the service's database, for relative times such as `in 42 s`.

        Asks the service once. If the service refuses the request or its answer is invalid, returns this host's time.
        """
        if self._ahead is None:
            self._ahead = self._clock_difference()
        return host_now() + self._ahead

    def _clock_difference(self) -> timedelta:
        from tenure_client.errors import Problem, UnexpectedAnswer  # noqa: PLC0415

        try:
            return self.client.me().now - host_now()
        except (Problem, UnexpectedAnswer):
            return timedelta()

    def raw(self) -> bytes:
        """The JSON of the last answer, as the service sent it, including fields that the client does not know."""
        return b"null" if self._last is None else self._last.content

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        self.client.close()
        if kind is None and self._last_words is not None:
            note(self._last_words)

    # Lists.

    def pages(self, fetch: Callable[..., Any], most: int | None) -> Iterator[Any]:
        """Yield the pages of a list until they contain `most` items, or all pages if `most` is None.

        `fetch` is the method of the client that reads the list.
        """
        if most is not None and most < 1:
            raise ConfigurationError("limit: must be at least 1")
        cursor, left = None, most
        while True:
            page = fetch(limit=PAGE if left is None else min(PAGE, left), cursor=cursor).first()
            yield page
            cursor = page.next_cursor
            left = None if left is None else left - page.count
            if cursor is None or left == 0:
                return

    def items(
        self, fetch: Callable[..., Any], items: str, most: int | None, total: Callable[[], str] | None = None
    ) -> list[Any]:
        """Return up to `most` items of a list. If the list has more, the command prints a note at its end.

        `items` is the field of a page that contains the items; `total` returns the length of the list for the note.
        """
        found: list[Any] = []
        page = None
        for page in self.pages(fetch, most):
            found += getattr(page, items)
        if page is not None and page.next_cursor is not None:
            how_many = "" if total is None else f" of {total()}"
            self._last_words = f"the first {len(found)}{how_many}; more with --limit {len(found) * 10} or --all"
        return found

    def print_list_json(self, fetch: Callable[..., Any], items: str, most: int | None) -> None:
        """Print a list as one JSON object, page by page, so that a long list needs little memory."""
        with JsonList(items) as printed:
            for _ in self.pages(fetch, most):
                printed.add(self.raw())

    def print_json(self) -> None:
        print_json(self.raw())


@contextmanager
def service_failures(service: Service) -> Iterator[None]:
    """If a call of the service fails, end the command with one line that says why, and with the fitting exit code."""
    from tenure_client import errors  # noqa: PLC0415

    try:
        yield
    except errors.Problem as error:
        request = "" if error.request_id is None else f", request {error.request_id}"
        hint = ""
        if isinstance(error, errors.Unauthenticated) and not service.has_key:
            hint = "; set TENURE_KEY, or add a key with `tenure contexts set`"
        fail(f"{error.detail}{hint} ({error.code or error.status}{request})", _code_of(error))
    except errors.TransportError as error:
        fail(f"{service.url} cannot be reached: {reason_text(error)}", ExitCode.UNREACHABLE)
    except errors.UnexpectedAnswer as error:
        fail(f"{service.url} did not return a valid Tenure response: {error}")
    except errors.ConfigurationError as error:
        raise ConfigurationError(str(error)) from None


def reason_text(error: "TransportError") -> str:
    """Return why a request got no answer, without the names of Python's classes."""
    from tenure_client import errors  # noqa: PLC0415

    _, _, said = str(error).partition(": ")
    reason = re.sub(r"^\[Errno -?\d+\] ", "", said)
    if isinstance(error, errors.TimedOut):
        return reason or "no answer in time"
    if isinstance(error, errors.NotSent):
        hint = "is it running (`tenure serve`)? Another address: --url or TENURE_URL"
        return f"{reason or 'no connection in time'}; {hint}"
    return reason or "the connection broke"


def _code_of(problem: "Problem") -> ExitCode:
    from tenure_client import errors  # noqa: PLC0415

    match problem:
        case errors.NotFound():
            return ExitCode.NOT_FOUND
        case errors.Unauthenticated() | errors.Forbidden():
            return ExitCode.DENIED
        case errors.Unavailable() | errors.RateLimited() | errors.TooManyFailures():
            return ExitCode.UNREACHABLE
        case _:
            return ExitCode.FAILED if problem.code else ExitCode.UNREACHABLE


@contextmanager
def connected(url: str | None, key: str | None, context: str | None) -> Iterator[Service]:
    """Yield the service that the flags of a command name. Most commands call this function through `with_service`."""
    with Service(target_of(url, key, context)) as service, service_failures(service):
        yield service


def with_service(command: Callable[Concatenate[Service, P], None]) -> Callable[..., None]:
    """Decorate a command: add the flags `--url`, `--key` and `--context`, and pass the service that they name."""
    signature = inspect.signature(command)
    (name, *_), flags = signature.parameters, {"url": UrlFlag, "key": KeyFlag, "context": ContextFlag}

    @wraps(command)
    def run(*arguments: Any, url: str | None, key: str | None, context: str | None, **more: Any) -> None:
        with connected(url, key, context) as service:
            command(service, *arguments, **more)

    own = [parameter for parameter in signature.parameters.values() if parameter.name != name]
    added = [
        inspect.Parameter(flag, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for flag, kind in flags.items()
    ]
    run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {**{each.name: each.annotation for each in own}, **flags, "return": None}
    return run
