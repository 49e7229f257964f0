"""Raises and clears alerts, under the write lock of the SQLite file."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, insert, or_, select, update

from tenure.domain.alerts import ONCALL, AlertChanges, Condition, Transition, delivery_key
from tenure.domain.leases import Fence
from tenure.domain.submissions import Contract
from tenure.errors import ERROR_MAX
from tenure.ids import new_id
from tenure.store.engines.sqlite.leases import check_fence
from tenure.store.engines.sqlite.submissions import insert_generated
from tenure.store.reads.alerts import changes_from_values
from tenure.store.reads.submissions import contract_text
from tenure.store.tables import alerts

_alert = alerts.c


def update_alerts(
    connection: Connection, now: datetime, fence: Fence, conditions: Sequence[Condition], contract: Contract | None
) -> AlertChanges:
    check_fence(connection, fence)
    rows = connection.execute(
        select(_alert.name, _alert.subject, _alert.alert_id).where(_alert.cleared_at.is_(None))
    ).all()
    active = {(row.name, row.subject): row.alert_id for row in rows}
    holding = {(condition.alert.value, condition.subject or ""): condition for condition in conditions}
    for (name, subject), condition in holding.items():
        if (name, subject) not in active:
            alert_id, detail = new_id(), condition.detail[:ERROR_MAX]
            values = {"alert_id": alert_id, "name": name, "subject": subject, "detail": detail}
            connection.execute(insert(alerts).values(**values, raised_at=now, raised_epoch=fence.epoch))
            _submit(connection, now, delivery_key(alert_id, Transition.RAISED), contract)
    for key, alert_id in active.items():
        if key not in holding:
            ends = update(alerts).where(_alert.alert_id == alert_id)
            connection.execute(ends.values(cleared_at=now, cleared_epoch=fence.epoch))
            _submit(connection, now, delivery_key(alert_id, Transition.CLEARED), contract)
    raised = _alert.cleared_at.is_(None) & (_alert.raised_epoch == fence.epoch)
    changed = select(alerts).where(or_(raised, _alert.cleared_epoch == fence.epoch))
    return changes_from_values(connection.execute(changed).mappings(), fence.epoch)


def _submit(connection: Connection, now: datetime, key: str, contract: Contract | None) -> None:
    if contract is None:
        return
    insert_generated(
        connection,
        now,
        submission_id=new_id(),
        gateway=ONCALL,
        caller="tenure",
        key=key,
        contract=contract_text(contract),
    )
