"""Windows counted anew from the sessions: many at once, so that a session is read once and not for each of them.

To find what lived in an old window the database goes through all that has closed since. That is done once for a run of
windows; which of them each session lived in, and for how long, is told from its part of the run.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from msgspec.structs import replace

from tenure.clock import to_microseconds
from tenure.model.usage import CHUNK_MAX, Life, Piece, Window
from tenure.store.store import Store
from tenure.usage.formats import FORMATS, render

PAGE = 5_000
"""Lives that are read at once: small enough to be made of rows long before a transaction counts as idle."""
WAITING_MAX = 200_000
"""Lives that may wait in memory to be rendered: of each window of a run, up to a chunk's."""


class Recount(NamedTuple):
    """What a window would be divided into today."""

    pieces: Sequence[Piece]
    digests: Sequence[bytes | None]
    """Of what each renders to; None if it is not to be sent, or in a format that is not known here."""


def runs_of(windows: Sequence[Window]) -> Iterator[Sequence[Window]]:
    """Of windows that are divided, newest first: those that touch, of one era, as many as may be counted at once."""
    run: list[Window] = []
    waiting = 0
    for window in windows:
        waiting += min(window.sessions or 0, CHUNK_MAX)
        if run and (window.ended_at != run[-1].started_at or window.era != run[-1].era or waiting > WAITING_MAX):
            yield run
            run, waiting = [], min(window.sessions or 0, CHUNK_MAX)
        run.append(window)
    if run:
        yield run


async def recount(store: Store, run: Sequence[Window]) -> Sequence[Recount]:
    """Of each window of a run, in its order."""
    counts = [_Count(window) for window in reversed(run)]
    ends = [count.ends for count in counts]
    whole = replace(run[0], started_at=run[-1].started_at)
    after: str | None = None
    while lives := await store.list_lives(whole, after, PAGE):
        for life in lives:
            _spread(life, counts, ends)
        after = lives[-1].session_id
    return [count.counted() for count in reversed(counts)]


class _Count:
    """What was found so far of a window."""

    def __init__(self, window: Window) -> None:
        self.starts = to_microseconds(window.started_at)
        self.ends = to_microseconds(window.ended_at)
        self._window = window
        name = None if window.contract is None else window.contract.format
        self._is_hashed = name in FORMATS
        self._format = name if name in FORMATS else "tenure"
        self._lives: list[Life] = []
        self._pieces: list[Piece] = []
        self._digests: list[bytes | None] = []

    def add(self, life: Life) -> None:
        self._lives.append(life)
        if len(self._lives) == CHUNK_MAX:
            self._end_piece()

    def counted(self) -> Recount:
        if self._lives:
            self._end_piece()
        return Recount(self._pieces, self._digests)

    def _end_piece(self) -> None:
        first, last = self._lives[0].session_id, self._lives[-1].session_id
        body, sessions, usage_millionths = render(self._format, self._window, self._lives)
        self._pieces.append(Piece(first, last, sessions, usage_millionths))
        self._digests.append(sha256(body).digest() if self._is_hashed else None)
        self._lives = []


def _spread(life: Life, counts: Sequence[_Count], ends: Sequence[int]) -> None:
    """From what a session lived of the run to what it lived of each window."""
    session_id, user, tenant, capacity, kind, from_at, to_at, before, _total = life
    begins = counts[0].starts if from_at is None else to_microseconds(from_at)
    over = ends[-1] if to_at is None else to_microseconds(to_at)
    offset = before - begins
    for count in counts[bisect_right(ends, begins) :]:
        if count.starts >= over:
            break
        count.add(
            Life(
                session_id,
                user,
                tenant,
                capacity,
                kind,
                from_at if begins > count.starts else None,
                to_at if over < count.ends else None,
                offset + max(begins, count.starts),
                offset + min(over, count.ends),
            )
        )
