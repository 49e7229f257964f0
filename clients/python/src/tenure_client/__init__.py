"""The Python client of Tenure.

from tenure_client import Client

with Client() as client, client.hold(user=…, tenant=…, capacity=…, kind=2, lease_seconds=60) as session:
    while work_is_left():
        session.check()
        work()
"""

from tenure_client import errors, models
from tenure_client._async.client import AsyncClient
from tenure_client._async.events import AsyncEventFollower
from tenure_client._async.held import AsyncHeldSession
from tenure_client._async.streams import AsyncStream
from tenure_client._core import Answer
from tenure_client._lease import Loss, LostReason
from tenure_client._messages import Final, Partial, SessionEnd, StreamError
from tenure_client._sync.client import Client
from tenure_client._sync.events import EventFollower
from tenure_client._sync.held import HeldSession
from tenure_client._sync.streams import Stream
from tenure_client.errors import Problem, SessionLost, TenureError

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncEventFollower",
    "AsyncHeldSession",
    "AsyncStream",
    "Client",
    "EventFollower",
    "Final",
    "HeldSession",
    "Loss",
    "LostReason",
    "Partial",
    "Problem",
    "SessionEnd",
    "SessionLost",
    "Stream",
    "StreamError",
    "TenureError",
    "errors",
    "models",
]
