"""Common parts of the state machines: each has its own database and its own event loop."""

import asyncio
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tenure.store.retries import Retries
from tests.support.databases import Database

MORE_EXAMPLES = int(os.environ.get("TENURE_TEST_MODEL_EXAMPLES", "10"))
"""The number of examples in the slow tests. Every test run generates new examples, of 40 or 50 steps each."""
PATIENCE_SECONDS = 30.0
"""The time after which a store call fails. With the usual limit, one of the thousands of calls of a test would fail
whenever the host pauses."""


class StoreMachine(RuleBasedStateMachine):
    """`bound_to_database` sets `database` and `run`. Every example begins with empty tables."""

    database: Database
    run: Callable[..., Any]
    now: datetime

    @property
    def store(self) -> Any:
        return self.database.store

    def _set_clock(self) -> None:
        self.run(self.database.clock.set(self.now))


Machine = TypeVar("Machine", bound=StoreMachine)


def bound_to_database(machine: type[Machine], request: pytest.FixtureRequest) -> Iterator[type[Machine]]:
    """Yields a subclass of `machine` with a database. A state machine runs synchronously, so the database has its own
    event loop.
    """
    with pytest.MonkeyPatch.context() as patched, asyncio.Runner() as runner:
        patched.setattr(Retries.run, "__defaults__", (PATIENCE_SECONDS,))
        database = runner.run(request.getfixturevalue(f"make_{request.param}")())
        yield type("Bound", (machine,), {"database": database, "run": staticmethod(runner.run)})
        runner.run(database.close())


def run_examples(bound: type[StoreMachine], examples: int, steps: int = 40) -> None:
    run_state_machine_as_test(
        bound,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
