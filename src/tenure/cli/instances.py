"""`tenure instances`: lists the instances of the installation."""

from datetime import datetime
from typing import TYPE_CHECKING

from tenure.cli.flags import JsonFlag
from tenure.cli.output import Cell, Column, Value, print_table, time_cell
from tenure.cli.service import Service, with_service

if TYPE_CHECKING:
    from tenure_client.models import Instance


@with_service
def instances(service: Service, as_json: JsonFlag = False) -> None:
    """List the instances, including those that stopped or died in the last day.

    tenure instances
    """
    fetch = service.client.instances.list
    if as_json:
        service.print_list_json(fetch, "instances", None)
        return
    columns = (
        Column("instance"),
        Column("state"),
        Column("leads"),
        Column("version", 1),
        Column("started", 2),
        Column("last seen", 3),
        Column("host", 4),
        Column("pid", 5),
        Column("worker", 6),
    )
    at = service.now()
    found = service.items(fetch, "instances", None)
    found.sort(key=lambda each: (not each.alive, each.instance))
    print_table(columns, [_row(each, at) for each in found], "no instances")


def instance_state(instance: "Instance") -> Cell:
    if instance.alive:
        return Cell("alive", style="good")
    return Cell("died", style="bad") if instance.stopped_at is None else Cell("stopped", style="dim")


def _row(instance: "Instance", at: datetime) -> list[Value]:
    return [
        instance.instance,
        instance_state(instance),
        ", ".join(instance.leads) or None,
        instance.version,
        time_cell(instance.started_at, at),
        time_cell(instance.last_seen_at, at),
        instance.host,
        instance.pid,
        instance.worker,
    ]
