"""The store's operations on the streams of sessions."""

from collections.abc import Sequence
from typing import Protocol

from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult


class StreamStore(Protocol):
    async def attach_streams(self, attaches: Sequence[AttachRequest]) -> Sequence[AttachResult]:
        """Makes each stream the newest of its session. Sets a lease and an idle limit if the session has none."""

    async def update_streams(self, updates: Sequence[StreamUpdate]) -> Sequence[StreamUpdateResult]:
        """Renews or ends the sessions of streams, and saves counters. All results of known sessions have the same
        `now`.
        """
