"""Saves what this worker counts (sessions opened, heartbeats, ends), minute by minute, for `GET /activity`.

`telemetry/counters.py` keeps the counts as totals since the start of the worker, which the metrics use, too. The
recorder takes a sample of these totals every ten seconds, at multiples of ten seconds of the database's clock, and so
at the start of each minute. It adds the difference between two samples to the minute of the earlier sample, so a minute
contains counts of the next one only if a sample is late. Requests do no extra work for this. After each sample, the
recorder saves the minutes that have changed: absolute counts, in rows that only this worker writes
(`domain/activity.py`).

Guarantees: the saved counts never add up to more than the worker has counted. After `stop`, they add up to exactly the
counts of the worker, unless the database was unavailable for too long (see the table).

| interruption | effect |
|---|---|
| killed | the counts of at most SAMPLE_SECONDS + SPREAD_SECONDS + the duration of one save are lost |
| paused | all counts between the samples before and after the pause are added to the minute of the earlier sample |
| the response to a save is lost, or the save commits late | none: the store keeps the greater one of two counts |
| no database | the last WAITING_MINUTES_MAX minutes are kept and saved later; `stop` drops what it cannot save |
| the database's clock is stepped forward | the minutes that the clock skips have no counts |
| the database's clock is stepped back | a repeated minute gets another row (see `Key`); readers add up its rows |
| two workers | each writes its own rows, which contain the name of its instance |
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import islice

from tenure.clock import ServerClock, from_microseconds
from tenure.domain.activity import MINUTE_MICROSECONDS, MinuteCounts
from tenure.errors import DatabaseUnavailable
from tenure.store.contract.instances import InstanceStore
from tenure.store.limits import BATCH_MAX
from tenure.telemetry.events import ActivityNotSaved, Telemetry

SAMPLE_SECONDS = 10
"""A divisor of a minute, so that a sample is taken at the start of each minute."""
SPREAD_SECONDS = 2.0
"""All workers take their samples at the same instant. Before it saves a sample, each worker waits for its own random
part of this time, so that the workers do not all save at once."""
WAITING_MINUTES_MAX = 1440
"""The most minutes that are kept in memory until they can be saved. A minute takes about a kilobyte."""
MICROSECONDS = 1_000_000

Key = tuple[int, int]
"""The start of a minute, in minutes since 1970, and the turn: how often the clock went back to an earlier minute."""


class ActivityRecorder:
    """`totals` returns the counts of this worker since its start. `clock` estimates the database's clock."""

    def __init__(
        self,
        store: InstanceStore,
        instance: str,
        totals: Callable[[], Mapping[str, int]],
        clock: ServerClock,
        telemetry: Telemetry,
    ) -> None:
        self._store = store
        self._instance = instance
        self._totals = totals
        self._clock = clock
        self._telemetry = telemetry
        self._spread = random.random() * SPREAD_SECONDS  # noqa: S311 - not a secret
        self._last: Mapping[str, int] = totals()
        self._key: Key | None = None
        """The key of the minute in which the last sample was taken."""
        self._unsaved: dict[Key, Counter[str]] = {}
        self._current: Counter[str] = Counter()
        """The counts of the minute of the last sample. Also in `_unsaved` if they have changed since the last save."""

    async def run(self) -> None:
        """Takes samples and saves them, until cancelled. Call `stop` after that."""
        self.sample()
        while True:
            await asyncio.sleep(self._seconds_to_next_sample())
            self.sample()
            await asyncio.sleep(self._spread)
            try:
                await self.save()
            except Exception as error:  # noqa: BLE001 - reported; the counts are saved later
                self._telemetry.report(ActivityNotSaved(str(error)))

    async def stop(self) -> None:
        """Takes a last sample and saves it. Unsaved counts are lost if the database is unavailable."""
        self.sample()
        try:
            await self.save()
        except DatabaseUnavailable as error:
            self._telemetry.report(ActivityNotSaved(str(error)))

    def sample(self) -> None:
        totals = self._totals()
        counted = Counter({name: totals[name] - self._last.get(name, 0) for name in totals})
        self._last = totals
        key = self._key_now()
        if self._key is None:
            self._key = key
        if any(counted.values()):
            self._current.update(counted)
            self._keep(self._key)
        if key != self._key:
            self._key, self._current = key, Counter()

    async def save(self) -> None:
        """Saves the minutes that have changed since the last save."""
        while batch := list(islice(self._unsaved.items(), BATCH_MAX)):
            minutes = [
                MinuteCounts(from_microseconds(minute * MINUTE_MICROSECONDS), turn, dict(counts))
                for (minute, turn), counts in batch
            ]
            await self._store.save_activity(self._instance, minutes)
            for saved, (key, counts) in zip(minutes, batch, strict=True):
                # If a sample was taken during the save, the minute may have new counts that are still unsaved.
                if saved.counts == counts:
                    del self._unsaved[key]

    def _keep(self, key: Key) -> None:
        self._unsaved[key] = self._current
        if len(self._unsaved) > WAITING_MINUTES_MAX:
            del self._unsaved[next(iter(self._unsaved))]

    def _key_now(self) -> Key:
        minute = self._clock.now_microseconds() // MINUTE_MICROSECONDS
        if self._key is None:
            return minute, 0
        last_minute, turn = self._key
        return minute, turn + 1 if minute < last_minute else turn

    def _seconds_to_next_sample(self) -> float:
        step = SAMPLE_SECONDS * MICROSECONDS
        return (step - self._clock.now_microseconds() % step) / MICROSECONDS
