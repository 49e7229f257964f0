"""What is under way to one gateway."""

from collections import deque
from typing import NamedTuple

from tenure.model.submissions import Parcel
from tenure.store.store import BATCH_MAX
from tenure.submissions.gateways import Gateway


class Ready(NamedTuple):
    """An attempt that was begun, and what to send."""

    number: int
    failures: int
    parcel: Parcel


class Lane:
    """The places of a gateway, and what waits for one.

    While a batch of attempts is being begun, answers come and leave places empty. So as many more are begun ahead as
    were answered during the last one: none, if the receiver does not answer.
    """

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.ready: deque[Ready] = deque()
        self.sending = 0
        self.unrecorded = 0
        self.answered = 0
        self.is_failing = False
        self._ahead = 0

    @property
    def has_place(self) -> bool:
        return self.sending < self.gateway.concurrency

    @property
    def room(self) -> int:
        """For as many as may be begun now, if recording keeps up."""
        places = self.gateway.concurrency
        return min(places + self._ahead - self.sending - len(self.ready), 3 * places - self.unrecorded, BATCH_MAX)

    def begin_ahead(self, answered_before: int) -> None:
        self._ahead = min(self.gateway.concurrency, 2 * (self.answered - answered_before))
