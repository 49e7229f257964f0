"""Exit codes, and the function that turns the failure of a command into an exit code.

`handled_failures` prints a failure as one line to standard error. Only a bug prints a traceback. `docs/commands.md`
contains the table of these codes; a test compares it with `ExitCode`.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn, Self

import typer

from tenure.errors import ConfigurationError, DatabaseUnavailable


class ExitCode(IntEnum):
    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    DONE = 0, "the command succeeded"
    FAILED = 1, "the service refused, the database failed, a check found faults, or you answered no to a question"
    USAGE = 2, "a flag, an argument or a setting is wrong; nothing was done"
    WARNINGS = 3, "`doctor` found warnings, but nothing that is broken"
    NOT_FOUND = 4, "no such session, capacity, job, lease, submission or usage window, or no such context to remove"
    UNREACHABLE = 5, "the service does not answer, is unavailable or limits requests; the same command may work later"
    DENIED = 6, "the service requires a key, or the key does not allow this"
    INTERRUPTED = 130, "interrupted by ctrl-C. For `serve`, `receiver` and `demo`, ctrl-C is the usual end, with code 0"
    BROKEN_PIPE = 141, "the program that reads the output ended first, as in `tenure sessions list | head -1`"


def fail(message: str, code: ExitCode = ExitCode.FAILED) -> NoReturn:
    """Print one line to standard error, and end the command."""
    print_error(message)
    raise typer.Exit(code)


def print_error(message: str) -> None:
    typer.echo(f"tenure: {' '.join(message.split())}", err=True)


@contextmanager
def handled_failures() -> Iterator[None]:
    """End the command with the exit code of its failure."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output again when it exits. With /dev/null this flush does not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(ExitCode.BROKEN_PIPE) from None
    except ConfigurationError as error:
        print_error(str(error))
        raise typer.Exit(ExitCode.USAGE) from None
    except DatabaseUnavailable as error:
        print_error(error.detail)
        raise typer.Exit(ExitCode.FAILED) from None
