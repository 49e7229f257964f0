"""The store's operations on the streams of sessions."""

from collections.abc import Sequence
from typing import Protocol

from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult


class StreamStore(Protocol):
    async def attach_streams(self, attaches: Sequence[AttachRequest]) -> Sequence[AttachResult]:
        """Makes each stream the newest of its session, if the session is live. A session without a lease gets the lease
        of the request, and a session without an idle limit gets the idle limit of the request.
        """

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdateResult]:
        """Renews or ends the sessions of streams, and saves counters. All results of known sessions have the same
        `now`.
        """
