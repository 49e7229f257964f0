"""Job `watch`: raises and clears alerts.

A run reads the observations, derives the conditions that hold (`domain/alerts.py`), and hands all of them to one fenced
transaction. The transaction compares them with the active alerts, writes the changes, and accepts a submission to
gateway `oncall`, if it is configured, for each change. Guarantees, and what happens if a step is interrupted:

- Each change is made once, however many instances run and restart: only the holder of the job's lock writes alerts, and
  a unique index allows one active alert per name and subject.
- Each change gets one submission, which is part of the transaction. Its delivery key is derived from the alert and the
  change, so the receiver recognises a repeated attempt.
- Each change is logged at most once. If the answer of the transaction is lost, the run repeats the call, and the store
  returns the changes of this run again. If the process dies between the transaction and the log line, the line is
  missing, but the alert is listed and delivered.
- If a run is cancelled before the transaction, nothing has changed. The next run, on any instance, does the same work.
"""

import asyncio
from collections.abc import Callable, Sequence

from tenure.alerts.delivery import alert_contract
from tenure.domain.alerts import AlertChanges, Condition, conditions_of
from tenure.domain.submissions import Contract
from tenure.errors import DatabaseUnavailable
from tenure.jobs.job import ActiveRun
from tenure.store.contract import Store
from tenure.telemetry.events import AlertCleared, AlertRaised, Telemetry

RETRY_SECONDS = 1.0


class Watch:
    interval_seconds = 30.0

    def __init__(
        self,
        store: Store,
        lease_names: Callable[[], Sequence[str]],
        contract: Contract | None,
        hint: Callable[[], None],
        telemetry: Telemetry,
    ) -> None:
        """`contract` is that of gateway `oncall`; None if it is not configured. `hint` wakes the executor."""
        self._store = store
        self._lease_names = lease_names
        self._contract = None if contract is None else alert_contract(contract)
        self._hint = hint
        self._telemetry = telemetry

    async def run(self, run: ActiveRun) -> None:
        observed = await self._store.read_observations(self._lease_names())
        changes = await self._update(run, conditions_of(observed))
        for alert in changes.raised:
            self._telemetry.report(AlertRaised(alert.alert_id, alert.name, alert.subject, alert.detail))
        for alert in changes.cleared:
            self._telemetry.report(AlertCleared(alert.alert_id, alert.name, alert.subject, alert.raised_at))
        run.count("raised", len(changes.raised))
        run.count("cleared", len(changes.cleared))
        if self._contract is not None and (changes.raised or changes.cleared):
            self._hint()
            await self._store.announce_submissions()

    async def _update(self, run: ActiveRun, conditions: Sequence[Condition]) -> AlertChanges:
        """Repeats the call until it succeeds, because only this run can learn which changes it has made.

        The run is cancelled when the lock is not trusted any more.
        """
        while True:
            try:
                return await self._store.update_alerts(run.fence, conditions, self._contract)
            except DatabaseUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
