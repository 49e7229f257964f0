"""The payload source of alerts: renders a change of an alert (raised or cleared) when it is sent to gateway `oncall`.

The delivery key names the alert and the change. The content of a payload is final as soon as the change is committed.
So all renderings, on any instance, are identical, and no digest has to be stored.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tenure.clock import instant_text
from tenure.domain.alerts import Alert, Transition
from tenure.domain.leases import Fence
from tenure.domain.submissions import Contract, Envelope
from tenure.store.contract import Store
from tenure.submissions.payloads import JSON, Withheld

FORMAT = "alert"


def alert_contract(contract: Contract) -> Contract:
    """Return the contract of gateway `oncall` for alerts."""
    return msgspec.structs.replace(contract, format=FORMAT)


class AlertPayloads:
    name = "alert"
    media_types: Mapping[str, str] = {FORMAT: JSON}

    def __init__(self, store: Store) -> None:
        self._store = store

    async def render(self, envelopes: Sequence[Envelope]) -> Mapping[str, bytes | Withheld]:
        keys = {envelope.submission_id: envelope.delivery_key.rpartition("-") for envelope in envelopes}
        found = await self._store.find_alerts([alert_id for alert_id, _, _ in keys.values()])
        alerts = {alert.alert_id: alert for alert in found}
        return {
            submission_id: payload_of(alerts.get(alert_id), Transition(transition))
            for submission_id, (alert_id, _, transition) in keys.items()
        }

    async def store_digests(self, fence: Fence, envelopes: Sequence[Envelope]) -> Mapping[str, Withheld]:
        del fence, envelopes
        return {}

    async def report_delivered(self, submission_ids: Sequence[str]) -> None:
        """Reports nothing: the list of submissions shows the deliveries."""


def payload_of(alert: Alert | None, transition: Transition) -> bytes | Withheld:
    """Return the body: a Standard Webhook with the alert as it was just after the change. If there is no such alert,
    return `Withheld`.
    """
    if alert is None:
        return Withheld("there is no alert for this submission")
    data: dict[str, Any] = {
        "alertId": alert.alert_id,
        "name": alert.name,
        "subject": alert.subject,
        "detail": alert.detail,
        "raisedAt": instant_text(alert.raised_at),
    }
    changed_at = alert.raised_at
    if transition is Transition.CLEARED and alert.cleared_at is not None:
        changed_at = alert.cleared_at
        data["clearedAt"] = instant_text(alert.cleared_at)
    content = {"type": f"alert.{transition.value}", "timestamp": instant_text(changed_at), "data": data}
    return msgspec.json.encode(content)
