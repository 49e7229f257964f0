"""Structured logs of telemetry events and of libraries: readable on a terminal, JSON everywhere else.

Most events below the configured level have no subscriber here, so they cost nothing. Two kinds of lines have settings
of their own, because there can be one per request:

- sessions that clients open, upgrade and end (`sessions`: the level of these lines, or off). Lapses and evictions are
  written at level `info`, unless `sessions` is off;
- the access log (`access`), one line per request.

A line costs about 9 µs, and opening a session about 50 µs in all. So by default, there is no access log, and of the
lines about sessions, only those of lapses and evictions are written.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import IO, Any, BinaryIO, Literal, TextIO, cast

import msgspec
import structlog
from structlog.tracebacks import ExceptionDictTransformer

from tenure.clock import instant_text, monotonic
from tenure.domain.sessions import OpenOutcome
from tenure.telemetry.events import (
    Event,
    Level,
    RequestAnswered,
    SessionClosed,
    SessionOpened,
    Telemetry,
    all_events,
    current_request,
)

_logger = structlog.get_logger()


SILENT = logging.Logger("silent", logging.CRITICAL + 1)  # noqa: LOG001 - must not inherit a level
"""A logger without output, for packages that would log secrets at the level DEBUG."""
REPEATED_SECONDS = 1.0
"""The shortest time between two lines of the same event, subject and cause, for events that repeat."""


SessionLevel = Literal["off", "debug", "info"]
_RANKS: Mapping[str, int] = {"debug": 10, "info": 20, "warning": 30, "error": 40, "off": 100}


def log_events(
    telemetry: Telemetry, level: Level = "info", sessions: SessionLevel = "debug", *, access: bool = False
) -> Telemetry:
    """Writes a line for every event that has a log entry of `level` or above. Of events that repeat, writes at most one
    line a second with the same event, subject and cause.
    """
    lowest = _RANKS[level]
    write, write_repeated = partial(_write, lowest), _Repetitions(lowest).write
    for kind in all_events():
        # If `log_entry` of an event chooses the level, the level is checked when the line is written.
        chooses = kind.log_entry is not Event.log_entry
        if kind.level is not None and kind is not SessionClosed and (chooses or _RANKS[kind.level] >= lowest):
            telemetry.subscribe(kind, write_repeated if kind.repeats else write)
    if sessions != "off":
        telemetry.subscribe(SessionClosed, partial(_write_closed, sessions, lowest))
        if _RANKS[sessions] >= lowest:
            telemetry.subscribe(SessionOpened, partial(_write_opened, sessions))
    if access and lowest <= _RANKS["info"]:
        telemetry.subscribe(RequestAnswered, _write_request)
    return telemetry


def _write_closed(level: Level, lowest: int, event: SessionClosed) -> None:
    name = event.log_names.get(event.reason)
    written = level if name is None else "info"
    if _RANKS[written] >= lowest:
        # Field by field: a sweep may write 100 000 of these lines, and a loop over the fields costs 2 µs per line.
        getattr(_logger, written)(
            name or event.name,
            session_id=event.session_id,
            reason=event.reason,
            ended_at=instant_text(event.ended_at),
            user=event.user,
            tenant=event.tenant,
            capacity=event.capacity,
            state=event.state,
        )


def _write_opened(level: Level, event: SessionOpened) -> None:
    """Writes a line for a new session, but none if the open request returned an existing session."""
    if event.outcome is OpenOutcome.EXISTING:
        return
    session = event.session
    fields: dict[str, Any] = {
        "session_id": session.session_id,
        "user": session.user_object_id,
        "tenant": session.tenant_object_id,
        "capacity": session.capacity_id,
        "kind": session.kind,
    }
    if event.outcome is OpenOutcome.UPGRADED:
        getattr(_logger, level)("session.upgraded", previous_session_id=session.previous_session_id, **fields)
    else:
        getattr(_logger, level)(event.name, **fields)


def _write_request(event: RequestAnswered) -> None:
    fields = {field: value for field in event.__struct_fields__ if (value := getattr(event, field)) is not None}
    fields["seconds"] = round(event.seconds, 6)
    if event.trace is not None:
        del fields["trace"]
        fields["trace_id"] = f"{event.trace.trace_id:032x}"
    _logger.info(event.name, **fields)


class _Repetitions:
    """Limits the lines of repeated events. A line has the number of events suppressed since the previous line."""

    def __init__(self, lowest: int) -> None:
        self._lowest = lowest
        self._next_at: dict[tuple[str, ...], float] = {}
        self._suppressed: dict[tuple[str, ...], int] = {}

    def write(self, event: Event) -> None:
        key, now = event.repetition_key(), monotonic()
        if now < self._next_at.get(key, 0.0):
            self._suppressed[key] = self._suppressed.get(key, 0) + 1
            return
        self._next_at[key] = now + REPEATED_SECONDS
        _write(self._lowest, event, self._suppressed.pop(key, 0))


def _write(lowest: int, event: Event, suppressed: int = 0) -> None:
    entry = event.log_entry()
    if entry is None or _RANKS[entry[0]] < lowest:
        return
    level, name = entry
    fields = {field: _value(value) for field in event.__struct_fields__ if (value := getattr(event, field)) is not None}
    request_id = current_request.get()
    if request_id is not None:
        fields.setdefault("request_id", request_id)
    if suppressed:
        fields["suppressed"] = suppressed
    exception = fields.pop("exception", None)
    if exception is not None:
        fields["exc_info"] = exception
    getattr(_logger, level)(name, **fields)


def _value(value: Any) -> Any:
    return instant_text(value) if isinstance(value, datetime) else value


def _as_json(event: structlog.types.EventDict, **_options: Any) -> bytes:
    """Encode with msgspec: a sweep may log 100 000 sessions. A line costs 9 µs; with `json` and `print`, 22 µs."""
    return msgspec.json.encode(event, enc_hook=repr)


_CONSOLE_PROCESSORS: list[structlog.types.Processor] = [
    structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
]
_JSON_PROCESSORS: list[structlog.types.Processor] = [
    structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
    structlog.processors.JSONRenderer(serializer=_as_json),
]


class _LibraryHandler(logging.Handler):
    """Writes the lines of libraries (asyncpg, SQLAlchemy, uvicorn, websockets) in the same format as all others."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            fields = {"exc_info": record.exc_info} if record.exc_info else {}
            _logger.log(record.levelno, record.getMessage(), logger=record.name, **fields)
        except Exception:  # noqa: BLE001 - a line that cannot be formatted must not stop the library
            self.handleError(record)


class _Lossy:
    """A stream of log lines. A line that cannot be written is dropped: a full disk, or a pipe whose reader has ended,
    must not stop the service.
    """

    def __init__(self, stream: Callable[[], IO[Any]]) -> None:
        self._stream = stream

    def write(self, line: Any) -> None:
        with suppress(OSError, ValueError):  # ValueError: the stream is closed
            self._stream().write(line)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream().flush()


def configure_logs(level: Level = "info") -> None:
    on_terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(_CONSOLE_PROCESSORS if on_terminal else _JSON_PROCESSORS),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_RANKS[level]),
        logger_factory=(
            structlog.PrintLoggerFactory(cast("TextIO", _Lossy(lambda: sys.stderr)))
            if on_terminal
            else structlog.BytesLoggerFactory(cast("BinaryIO", _Lossy(lambda: sys.stderr.buffer)))
        ),
        # With this, a logger keeps its settings from its first line on. So call `configure_logs` before the first line.
        # `tenure serve` calls it with the default level first, and again when it has read the configured level.
        cache_logger_on_first_use=True,
    )
    # Libraries log only warnings and errors; at level `error`, only errors.
    logging.basicConfig(level=max(logging.WARNING, _RANKS[level]), handlers=[_LibraryHandler()], force=True)
