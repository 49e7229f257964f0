"""`tenure status`: the whole installation at a glance."""

import msgspec

from tenure.cli.flags import JsonFlag
from tenure.cli.output import print_fields, print_json
from tenure.cli.overview import overview_fields, read_overview
from tenure.cli.service import Service, with_service


@with_service
def status(service: Service, as_json: JsonFlag = False) -> None:
    """Show the installation at a glance: sessions, seats, usage, leaders, jobs, gateways and alerts.

    What the key may not see is left out. `tenure top` shows the same live.

    tenure status
    """
    overview = read_overview(service)
    if as_json:
        parts = {name: msgspec.Raw(content) for name, content in overview.raw.items()}
        print_json({"url": overview.url, "ready": overview.not_ready is None, "notReady": overview.not_ready, **parts})
    else:
        print_fields(overview_fields(overview))
