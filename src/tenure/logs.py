"""Structured logs: readable on a terminal, JSON everywhere else. One event name, then facts."""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer


def configure_logs() -> None:
    readable = sys.stderr.isatty()
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if readable
        else structlog.processors.JSONRenderer()
    )
    processors: list[structlog.types.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([] if readable else [structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False))]),
        renderer,
    ]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    # Libraries speak only when something is wrong.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
