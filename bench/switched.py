"""Runs `tenure` with parts of its telemetry switched off, so that `sight.py` can measure their cost.

`BENCH_OFF` lists these parts: `telemetry` (metrics and logs) and `gauges` (reading the metrics of the installation).
Any other word, such as `none`, switches nothing off. No setting of Tenure can switch these parts off. Workers import
this file again, so the parts are off in workers, too.
"""

import asyncio
import os
from typing import Any

import tenure.store.engines
from tenure.alerts.installation import InstallationReader
from tenure.cli.main import main
from tenure.http.pipeline import Pipeline
from tenure.sessions.open import Opener
from tenure.telemetry.events import InstanceReady, Listening, Telemetry


async def _never(_reader: InstallationReader) -> None:
    await asyncio.Event().wait()


def _nothing(*_arguments: Any) -> None:
    pass


def switch_off_telemetry() -> None:
    """Requests, opens and calls of the store report no events, and no other event has a subscriber.

    The exceptions are the two events whose log lines `bench.py` waits for.
    """
    subscribe = Telemetry.subscribe

    def subscribe_to_start(telemetry: Telemetry, kind: Any, subscriber: Any) -> None:
        if kind in (Listening, InstanceReady):
            subscribe(telemetry, kind, subscriber)

    Telemetry.subscribe = subscribe_to_start  # type: ignore[method-assign]
    Pipeline.report_answered = _nothing  # type: ignore[method-assign]
    Opener._report = _nothing  # type: ignore[method-assign]  # noqa: SLF001
    tenure.store.engines.report_calls = lambda store, _telemetry: store


parts = os.environ["BENCH_OFF"].split(",")
if "gauges" in parts:
    InstallationReader.run = _never  # type: ignore[method-assign]
if "telemetry" in parts:
    switch_off_telemetry()

if __name__ == "__main__":
    main()
