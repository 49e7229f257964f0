"""The recovery of a gateway: when it answers again, all submissions that wait for it are sent, oldest first.

During an outage the pauses of the contracts grow to hours. Without a special rule, a gateway that answers again would
get new submissions at once, and the old ones hours later. So the executor follows the state of each gateway:

- *failing*: a request failed, and no request was delivered in the CALM_SECONDS before this failure. So a gateway that
  refuses one payload and accepts the others is not failing, and the state does not change many times a second. Every
  term begins as if all gateways were failing, because earlier terms may have left submissions waiting;
- *recovering*, from the first delivery on: the executor takes the **backlog**, which is all submissions that wait for
  the gateway, and begins **early attempts** in the order of acceptance. At first one early attempt may be in progress,
  after its delivery two, after two more deliveries four, and so on, up to the concurrency of the gateway. If an attempt
  that was in progress when the recovery began fails later, its submission joins the backlog at the end. When the
  gateway fails again, the backlog is dropped, and the next delivery starts a new recovery;
- *working*: the backlog is done.

An early attempt that fails does not count against `max_attempts`, and its submission waits until it would have been due
anyway. If another submission was delivered in the CALM_SECONDS before the failure, the executor assumes that the
payload is at fault, and makes the pause binding: the submission gets no second early attempt before its next regular
one. Otherwise the executor assumes that the gateway is at fault, and the submission comes last in the next backlog. So
a request that the receiver never answers does not delay the others. A pause that the receiver asked for with
`Retry-After` is binding, too.

The database begins every attempt and knows which pauses are binding, so neither a stale backlog nor a second instance
can send a submission twice or too early. A crash loses only the backlog, and the next term takes a new one.
"""

from collections.abc import Iterable

from tenure.submissions.schedule import Backlog

CALM_SECONDS = 1.0
LONG_AGO = float("-inf")


class Recovery:
    """The state of one gateway. `now` is in seconds of the monotonic clock."""

    def __init__(self, concurrency: int) -> None:
        self.backlog: Backlog | None = None
        self.refused: set[int] = set()
        """The numbers (`number_of_id`) of the submissions whose early attempt failed, with the gateway at fault. These
        submissions come last in the next backlog."""
        self.stragglers: set[str] = set()
        """The ids of the submissions whose attempt was in progress when the gateway began to recover. At first they are
        not in the backlog. If such an attempt fails, its submission is added to the backlog."""
        self.is_reported = False
        """Whether the failure of the gateway was reported, but not yet its recovery."""
        self._is_failing = True
        self._concurrency = concurrency
        self._delivered_at = LONG_AGO
        self._window = 0
        self._delivered = 0
        self._in_progress = 0

    def is_calm(self, now: float) -> bool:
        """Whether a request was delivered in the last CALM_SECONDS."""
        return now - self._delivered_at < CALM_SECONDS

    @property
    def room(self) -> int:
        """The number of early attempts that may be begun now."""
        if self.backlog is None or not self.backlog.is_sorted:
            return 0
        return max(0, self._window - self._in_progress)

    def fail(self, now: float) -> bool:
        """Records a failed request. Returns whether the gateway is failing."""
        if not self.is_calm(now):
            self._is_failing = True
            self.backlog = None
        return self._is_failing

    def deliver(self, now: float) -> bool:
        """Records a delivery. Returns whether the gateway begins to recover, so that `start` must be called."""
        self._delivered_at = now
        return self._is_failing

    def start(self, backlog: Backlog, in_progress: Iterable[str]) -> None:
        self.backlog = backlog
        self.stragglers = set(in_progress)
        self._is_failing = False
        self._window, self._delivered = 1, 0

    def rejoin(self, backlog: Backlog) -> None:
        """Adds a straggler behind the rest of the backlog. `backlog` contains only this straggler."""
        if self._is_failing:
            return  # the next recovery finds the straggler in the schedule
        if self.backlog is None:
            self.backlog = backlog
        else:
            self.backlog.append(backlog)

    def take(self, limit: int) -> list[str]:
        """Returns the ids of submissions that may be begun early. Drops the backlog when nothing is left of it."""
        wanted = min(limit, self.room)
        if self.backlog is None or wanted <= 0:
            return []
        taken = self.backlog.take(wanted)
        if len(taken) < wanted:
            self.backlog = None
        return taken

    def begin(self) -> None:
        """Records that an early attempt was begun."""
        self._in_progress += 1

    def end(self, number: int, *, delivered: bool, refused: bool) -> None:
        """Records the end of an early attempt of the submission `number`. `refused` means that the attempt failed, and
        that its pause is not binding: the gateway is at fault.
        """
        self._in_progress -= 1
        if delivered:
            self.refused.discard(number)
            self._delivered += 1
            if self._delivered >= self._window:
                self._window, self._delivered = min(2 * self._window, self._concurrency), 0
        elif refused:
            self.refused.add(number)
