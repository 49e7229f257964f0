"""What a stream counts, in memory: nothing is written per message."""

from collections import Counter

from tenure.model.sessions import StreamCounters
from tenure.streams.handlers import Message

BYTES_PER_MS = 32
"""Of audio at 16 kHz with 16 bits. Every binary message is taken for audio."""


class Tally:
    """What was counted and not saved yet. `totals` are the instance's, which are counted along."""

    def __init__(self, totals: Counter[str]) -> None:
        self._totals = totals
        self._counted: Counter[str] = Counter()
        self._audio_bytes = 0

    def received(self, message: Message) -> None:
        if isinstance(message, str):
            self._add("bytes_received", len(message.encode()))
        else:
            self._add("bytes_received", len(message))
            self._add_audio(len(message))
        self._add("chunks", 1)

    def sent(self, kind: str = "messages_sent") -> None:
        """Partials, finals and errors are messages, too."""
        self._add("messages_sent", 1)
        if kind != "messages_sent":
            self._add(kind, 1)

    def take(self) -> StreamCounters:
        """What is to be saved; from here on it counts as saved."""
        counted, self._counted = self._counted, Counter()
        return StreamCounters(*(counted[name] for name in StreamCounters.__struct_fields__))

    def _add(self, name: str, amount: int) -> None:
        self._counted[name] += amount
        self._totals[name] += amount

    def _add_audio(self, amount: int) -> None:
        """In whole milliseconds of all that came, so that small messages lose nothing by rounding."""
        before = self._audio_bytes // BYTES_PER_MS
        self._audio_bytes += amount
        self._add("audio_duration_ms", self._audio_bytes // BYTES_PER_MS - before)
