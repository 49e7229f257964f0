"""Sends windows that were cut without a gateway, on the request of an operator.

Without a gateway `usages`, windows are cut and divided, but get no contract and no submissions. Once a gateway is
configured, new windows are sent; older ones are sent only on request, because the operator may have billed them in
another way.

Each window is submitted in one transaction, which sets the contract of the window and creates the submissions of its
chunks. A window with a contract is never submitted again. So the request can be repeated after a crash or a lost
response, and several requests can run at the same time. Requests do not conflict with the job `emit-usage`: the job
changes only windows that are not divided yet, and a request skips those.
"""

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate

import msgspec

from tenure.clock import instant_text
from tenure.domain.audit_log import Action, Actor, AuditDraft
from tenure.domain.submissions import Contract
from tenure.domain.usage import UnsentWindow, WindowToSend
from tenure.ids import new_id
from tenure.store.contract import Store

WINDOWS_PER_TRANSACTION = 128
CHUNKS_PER_TRANSACTION = 1000
"""The maximum number of chunks in one transaction. A window with more chunks gets a transaction of its own."""


BULK_TARGET = "windows"
"""The target that the audit log shows for a request."""


class SentUsage(msgspec.Struct, frozen=True):
    windows: int
    chunks: int
    complete: bool
    """Whether all windows of the span were submitted. False if windows are left beyond the limit, or are not divided
    yet."""


def draft_of(actor: Actor, from_at: datetime, to_at: datetime | None) -> AuditDraft:
    """Return the entry of the audit log for a request to send the windows of a span."""
    span = f"from {instant_text(from_at)}"
    if to_at is not None:
        span = f"{span} to {instant_text(to_at)}"
    return AuditDraft(new_id(), actor, Action.USAGE_WINDOWS_SENT, BULK_TARGET, span)


async def send_windows(
    store: Store, contract: Contract, from_at: datetime, to_at: datetime | None, limit: int, draft: AuditDraft
) -> SentUsage:
    """Submit the windows without a contract that begin in the span, oldest first, until at least `limit` are submitted
    or none is left.

    All transactions of the request share one entry in the audit log, `draft`.
    """
    windows = chunks = 0
    while windows < limit and (unsent := await store.list_unsent_windows(from_at, to_at, WINDOWS_PER_TRANSACTION)):
        batch = _first(unsent)
        sizes = {each.window_id: each.chunks for each in batch}
        sent = await store.send_windows(contract, [_with_ids(each) for each in batch], draft)
        windows += len(sent)
        chunks += sum(sizes[window_id] for window_id in sent)
        await store.announce_submissions()
    return SentUsage(windows, chunks, complete=not await _is_left(store, from_at, to_at))


async def _is_left(store: Store, from_at: datetime, to_at: datetime | None) -> bool:
    if await store.list_unsent_windows(from_at, to_at, 1):
        return True
    windows = [undivided.window for undivided in await store.list_undivided_windows(WINDOWS_PER_TRANSACTION)]
    before_end = [window for window in windows if to_at is None or window.started_at < to_at]
    # The oldest windows are divided first. So if the list is full, and all its windows begin before the end of the
    # span, further undivided windows may be in the span.
    if len(before_end) == WINDOWS_PER_TRANSACTION:
        return True
    return any(window.contract is None and from_at <= window.started_at for window in before_end)


def _first(unsent: Sequence[UnsentWindow]) -> Sequence[UnsentWindow]:
    """Return the first windows, as many as one transaction may contain, but at least one."""
    totals = accumulate(window.chunks for window in unsent)
    count = sum(total <= CHUNKS_PER_TRANSACTION for total in totals)
    return unsent[: max(count, 1)]


def _with_ids(window: UnsentWindow) -> WindowToSend:
    return WindowToSend(window.window_id, [new_id() for _ in range(window.chunks)])
