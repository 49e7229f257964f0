"""Payloads of submissions: stored when the submission is accepted, or rendered by a payload source when it is sent.

A feature that sends its own data, such as usage, registers a `PayloadSource` for its formats. A submission whose
contract names a format is rendered by the source of that format, or withheld if no source has registered the format.
All other submissions are sent as they were accepted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from tenure.domain.leases import Fence
from tenure.domain.submissions import Contract, Envelope
from tenure.store.contract import Store
from tenure.telemetry.events import PayloadWithheld

JSON = "application/json"
RETRY_SECONDS = 600.0


class Withheld(msgspec.Struct, frozen=True):
    """The result for a payload that must not be sent now, with the reason."""

    error: str
    retry_seconds: float = RETRY_SECONDS
    """The delay before the retry. Retries are automatic, but the payload is usually withheld again until an operator
    repairs the cause.
    """


class PayloadSource(Protocol):
    name: str
    """The prefix of the log event `<name>.withheld`."""
    media_types: Mapping[str, str]
    """The media type of each format that this source renders."""

    async def render(self, envelopes: Sequence[Envelope]) -> Mapping[str, bytes | Withheld]:
        """Returns payloads by submission id. Every rendering of one submission returns the same bytes."""

    async def store_digests(self, fence: Fence, envelopes: Sequence[Envelope]) -> Mapping[str, Withheld]:
        """Stores the digest of each payload, unless one is stored already. Returns the submissions whose stored digest
        differs.
        """

    async def report_delivered(self, submission_ids: Sequence[str]) -> None:
        """Called after the delivery of these submissions was recorded. The source of usage then reports those of their
        windows whose chunks are all delivered.
        """


class PayloadSources:
    def __init__(self) -> None:
        self._by_format: dict[str, PayloadSource] = {}

    def register(self, source: PayloadSource) -> None:
        self._by_format |= dict.fromkeys(source.media_types, source)

    def media_type(self, contract: Contract) -> str:
        source = self.source_of(contract)
        return JSON if source is None or contract.format is None else source.media_types[contract.format]

    def source_of(self, contract: Contract) -> PayloadSource | None:
        return None if contract.format is None else self._by_format.get(contract.format)

    def all(self) -> Iterable[PayloadSource]:
        return {id(source): source for source in self._by_format.values()}.values()


class Payloads:
    """The payloads of one batch of attempts. Read them while the attempts are recorded, then store their digests."""

    def __init__(self, store: Store, sources: PayloadSources) -> None:
        self._store = store
        self._sources = sources
        self._envelopes: dict[str, Envelope] = {}
        self._rendered: set[str] = set()
        self._withheld: dict[str, Withheld] = {}

    async def read(self, submission_ids: Sequence[str]) -> None:
        envelopes = await self._store.read_envelopes(submission_ids)
        self._envelopes = {envelope.submission_id: envelope for envelope in envelopes}
        for source in self._sources.all():
            own = [envelope for envelope in envelopes if self._sources.source_of(envelope.contract) is source]
            if own:
                self._add(await source.render(own))
        for envelope in envelopes:
            if envelope.contract.format is not None and self._sources.source_of(envelope.contract) is None:
                error = f"this version does not know the format {envelope.contract.format}"
                self._withheld[envelope.submission_id] = Withheld(error)

    def _add(self, payloads: Mapping[str, bytes | Withheld]) -> None:
        for submission_id, payload in payloads.items():
            if isinstance(payload, Withheld):
                self._withheld[submission_id] = payload
            else:
                self._rendered.add(submission_id)
                self._envelopes[submission_id] = replace(self._envelopes[submission_id], payload=payload)

    async def store_digests(self, fence: Fence, begun: Sequence[str]) -> None:
        """Call this after the attempts are recorded, and before any of them is sent."""
        for source in self._sources.all():
            own = [
                envelope
                for submission_id in begun
                if submission_id in self._rendered
                and self._sources.source_of((envelope := self._envelopes[submission_id]).contract) is source
            ]
            if own:
                self._withheld |= await source.store_digests(fence, own)

    def envelope(self, submission_id: str) -> Envelope:
        return self._envelopes[submission_id]

    def withheld(self, submission_id: str) -> Withheld | None:
        return self._withheld.get(submission_id)

    def withheld_event(self, submission_id: str, withheld: Withheld) -> PayloadWithheld:
        source = self._sources.source_of(self._envelopes[submission_id].contract)
        return PayloadWithheld("payload" if source is None else source.name, submission_id, withheld.error)
