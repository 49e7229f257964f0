"""`tenure status`: the whole installation at a glance."""

import msgspec

from tenure.cli.flags import JsonFlag
from tenure.cli.output import note, print_fields, print_json
from tenure.cli.overview import overview_fields, read_overview
from tenure.cli.service import Service, with_service


@with_service
def status(service: Service, as_json: JsonFlag = False) -> None:
    """Show the installation at a glance: sessions, seats, usage, leaders, jobs, gateways and alerts.

    Figures that the key may not read are left out. Without `--json`, the command also says what kind of key may read
    them. `tenure top` shows the same figures live.

    tenure status
    """
    overview = read_overview(service)
    if as_json:
        parts = {name: msgspec.Raw(content) for name, content in overview.raw.items()}
        print_json({"url": overview.url, "ready": overview.not_ready is None, "notReady": overview.not_ready, **parts})
    else:
        print_fields(overview_fields(overview))
        if overview.sessions is None:
            note("parts are left out: to see them, use a key with the role reader or operator")
        elif overview.metrics is None:
            note("parts are left out: to see them, use a key without a tenant")
