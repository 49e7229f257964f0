"""Notifies the service manager (systemd, `Type=notify`) when this process is ready and when it stops.

systemd names a datagram socket in `NOTIFY_SOCKET`. With several workers, each of them notifies: the service is ready
as soon as one worker is.
"""

import os
import socket
from contextlib import suppress

from tenure.telemetry.events import InstanceDraining, InstanceReady, Telemetry

VARIABLE = "NOTIFY_SOCKET"
SEND_SECONDS = 1.0


def has_service_manager() -> bool:
    return VARIABLE in os.environ


def notify_service_manager(telemetry: Telemetry) -> None:
    if has_service_manager():
        telemetry.subscribe(InstanceReady, lambda _: _send("READY=1"))
        telemetry.subscribe(InstanceDraining, lambda event: _send(f"STOPPING=1\nSTATUS=Draining: {event.reason}"))


def _send(message: str) -> None:
    address = os.environ[VARIABLE]
    if address.startswith("@"):  # a name in the abstract namespace of Linux
        address = "\0" + address[1:]
    # Ignore errors: the service continues even if the service manager has gone.
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(SEND_SECONDS)
        manager.connect(address)
        manager.sendall(message.encode())
