"""Reports every call of an async method of a store: the method, its duration with all retries, the size of its batch,
and the error that it raised.
"""

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

from tenure.clock import monotonic
from tenure.store.contract import Store
from tenure.telemetry.events import StoreCalled, Telemetry

BATCHES = {
    "open_sessions": 1,
    "heartbeat": 0,
    "end_sessions": 0,
    "attach_streams": 0,
    "update_streams": 0,
    "accept_submissions": 0,
    "begin_attempts": 1,
    "finish_attempts": 1,
}
"""The methods that take a batch of requests, and the position of the batch among their arguments."""


def report_calls(store: Store, telemetry: Telemetry) -> Store:
    """Makes each async method of `Store` report its calls, including calls from other methods of the same store."""
    for name, _ in inspect.getmembers(Store, inspect.iscoroutinefunction):
        setattr(store, name, _reporting(name, getattr(store, name), telemetry, BATCHES.get(name)))
    return store


def _reporting(
    name: str, method: Callable[..., Awaitable[Any]], telemetry: Telemetry, batch: int | None
) -> Callable[..., Awaitable[Any]]:
    @wraps(method)
    async def call(*arguments: Any, **named: Any) -> Any:
        began, error = monotonic(), None
        try:
            return await method(*arguments, **named)
        except BaseException as raised:
            error = type(raised).__name__
            raise
        finally:
            items = None if batch is None else len(arguments[batch])
            telemetry.report(StoreCalled(name, monotonic() - began, items, error))

    return call
