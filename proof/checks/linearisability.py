"""Checks whether the history of one key is linearisable: Wing and Gong's search, with Lowe's set of visited states.

Every call takes effect at one instant between its call and its return. The search looks for an order of these instants
in which the answers agree with the rules of a key:

- at most one session is live;
- `created` requires that no session is live; `existing`, that the returned session is live and of the same or a higher
  kind; `upgraded`, that the previous session is live and of a lower kind;
- a heartbeat is acknowledged only while its session is live, and never makes the deadline of the session earlier;
- a session that has been ended, or is past its deadline, never becomes live again.

Deadlines make time part of the state. If an answer contains an instant of the database, the call took effect at that
instant, which must lie between call and return. There is one exception: if a session has already ended, the answer to
an `end` of the session contains the instant of the earlier end. A call without an answer may have taken effect at any
time after the call began, or never.

If the database's clock was stepped during the history, times cannot be compared. The search then considers only the
order of the calls, and lets a session lapse at any time.

The search stops after STEPS_MAX steps and returns `undecided`, so it always ends.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from math import inf
from typing import NamedTuple

STEPS_MAX = 200_000


class Verdict(StrEnum):
    GOOD = "good"
    BAD = "bad"
    UNDECIDED = "undecided"


class Call(NamedTuple):
    """One call on a key. All instants have the same unit, such as microseconds since 1970."""

    action: str
    """`open`, `end` or `heartbeat`."""
    called_at: float
    returned_at: float
    """Infinite if there was no answer."""
    result: str
    """Of `open`: `created`, `existing` or `upgraded`. Of `end`: `ended`. Of `heartbeat`: `renewed`, or `over` if the
    session had ended. Without an answer: `unknown`."""
    session_id: str = ""
    """The session of the answer, or the one that the call was about."""
    kind: int = 0
    at: float | None = None
    """The instant of the effect, by the database's clock."""
    deadline_at: float = inf
    """The deadline in the answer."""
    previous_id: str = ""

    @property
    def is_answered(self) -> bool:
        return self.result != "unknown"


class State(NamedTuple):
    """The state of a key. Its session is live until some instant between `earliest` and `latest`."""

    session_id: str = ""
    """Empty if no session is live; `?` if a call without an answer opened the session: its id is not known yet."""
    kind: int = 0
    earliest: float = -inf
    latest: float = -inf
    floor: float = -inf
    """All further calls take effect at this instant or later."""
    gone: frozenset[str] = frozenset()
    """The ids of sessions that have ended and whose opening was not answered: they must not become live again."""


class Result(NamedTuple):
    verdict: Verdict
    steps: int
    placed: int = 0
    """The number of answered calls in the longest order that agrees with the rules; 0 if the verdict is `good`."""
    stuck: Sequence[Call] = ()
    """The answered calls that could come next in this order; none of them agreed with the rules. Empty if the verdict
    is `good`."""


def check(calls: Sequence[Call], lease: float = 0, steps_max: int = STEPS_MAX, *, timeless: bool = False) -> Result:
    """`lease`: the shortest time that a session lives if the answer to its opening was lost.

    `timeless`: ignore all instants of the database, because its clock was stepped during the history.
    """
    if timeless:
        calls, lease = [call._replace(at=None, deadline_at=-inf) for call in calls], 0
    ordered = sorted(calls, key=lambda call: (call.called_at, call.returned_at))
    return _Search(ordered, lease, timeless=timeless).run(steps_max)


class _Search:
    def __init__(self, calls: Sequence[Call], lease: float, *, timeless: bool) -> None:
        # A heartbeat without an answer may have moved the deadline of its session. Instead of trying both cases, the
        # search lets this session lapse at any time after its last known deadline.
        self._shaky = {call.session_id for call in calls if call.action == "heartbeat" and not call.is_answered}
        self._calls = [call for call in calls if call.action != "heartbeat" or call.is_answered]
        self._made = {call.session_id for call in self._calls if call.result in ("created", "upgraded")}
        self._lease = lease
        self._timeless = timeless
        self._answered = sum(1 << place for place, call in enumerate(self._calls) if call.is_answered)

    def run(self, steps_max: int) -> Result:
        steps, best, stuck = 0, 0, list[Call]()
        seen: set[tuple[int, State]] = set()
        stack = [(0, State())]
        while stack:
            done, state = stack.pop()
            if done & self._answered == self._answered:
                return Result(Verdict.GOOD, steps)
            steps += 1
            if steps > steps_max:
                return Result(Verdict.UNDECIDED, steps, best, stuck)
            candidates = self._candidates(done)
            placed = (done & self._answered).bit_count()
            if placed > best or not stuck:
                best, stuck = placed, [self._calls[place] for place in candidates if self._calls[place].is_answered]
            # Push the candidates in reverse, because the stack returns the last one first. So calls with an answer are
            # tried before the others, in the order of their effects.
            for place in reversed(candidates):
                for after in self._effects(self._calls[place], state):
                    following = (done | 1 << place, after)
                    if following not in seen:
                        seen.add(following)
                        stack.append(following)
        return Result(Verdict.BAD, steps, best, stuck)

    def _candidates(self, done: int) -> list[int]:
        """The calls that may be next: no other remaining call returned before they began.

        Of several calls without an answer and with the same effect, only the first is a candidate. If an order contains
        a later one of them, the first one could take its place. Without this rule, the number of orders doubles with
        each call without an answer.
        """
        places: list[int] = []
        unanswered: set[tuple[str, str, int]] = set()
        first_return = inf
        for place, call in enumerate(self._calls):
            if done >> place & 1:
                continue
            if call.called_at > first_return:
                break  # the calls are sorted, so all later ones began after that return, too
            if not call.is_answered:
                effect = (call.action, call.session_id, call.kind)
                if effect in unanswered:
                    continue
                unanswered.add(effect)
            places.append(place)
            first_return = min(first_return, call.returned_at)
        return sorted(places, key=lambda place: self._order(self._calls[place]))

    @staticmethod
    def _order(call: Call) -> tuple[bool, float]:
        return not call.is_answered, call.called_at if call.at is None else call.at

    def _effects(self, call: Call, state: State) -> Iterator[State]:
        """The states that the call can lead to."""
        low, high = max(call.called_at, state.floor), call.returned_at
        if call.at is not None:
            if not low <= call.at <= high:
                # The answer to an `end` of a session that has already ended contains the earlier end.
                if call.result == "ended" and call.at <= high:
                    yield from self._already_over(call, state, low, high)
                return
            if call.result != "ended":
                low = high = call.at
        for live, at in self._alternatives(state, low, high):
            yield from self._apply(call, live, at, high)

    def _alternatives(self, state: State, low: float, high: float) -> Iterator[tuple[State, float]]:
        """Yields the states that the key can be in when the call takes effect between `low` and `high`: unchanged, or
        with its session lapsed. Each comes with the earliest instant at which the call can meet that state.
        """
        if not state.session_id:
            yield state._replace(floor=low), low
            return
        if low < state.latest:
            yield state._replace(floor=low), low
        if high >= state.earliest and state.earliest < inf:
            at = max(low, state.earliest)
            yield self._over(state, at), at

    def _over(self, state: State, at: float) -> State:
        gone = state.gone if state.session_id in self._made or state.session_id == "?" else state.gone | {state[0]}
        return State(floor=at, gone=gone)

    def _apply(self, call: Call, state: State, at: float, high: float) -> Iterator[State]:
        if call.action == "open":
            yield from self._open(call, state, at)
        elif call.action == "end":
            yield from self._end(call, state, at, high)
        else:
            yield from self._heartbeat(call, state, at)

    def _open(self, call: Call, state: State, at: float) -> Iterator[State]:
        if not call.is_answered:
            if not state.session_id or state.kind < call.kind:
                ended = self._over(state, at) if state.session_id else state
                yield ended._replace(session_id="?", kind=call.kind, earliest=at + self._lease, latest=inf)
            return
        if call.result == "created" and not state.session_id:
            yield self._live(call, state, at)
        elif call.result == "upgraded":
            for found in self._named(state, call.previous_id):
                if found.kind < call.kind:
                    yield self._live(call, self._over(found, at), at)
        elif call.result == "existing":
            for found in self._named(state, call.session_id):
                if found.kind >= call.kind:
                    earliest = max(found.earliest, call.deadline_at if call.deadline_at < inf else -inf)
                    yield found._replace(earliest=earliest, latest=max(found.latest, earliest))

    def _end(self, call: Call, state: State, at: float, high: float) -> Iterator[State]:
        if not call.is_answered:
            for found in self._named(state, call.session_id):
                yield self._over(found, at)
            return
        yield from self._already_over(call, state, at, high)
        exact = at if call.at is None else call.at
        if at <= exact <= high:
            for found in self._named(state, call.session_id):
                if exact <= found.latest:
                    yield self._over(found, exact)

    def _already_over(self, call: Call, state: State, low: float, high: float) -> Iterator[State]:
        for live, _ in self._alternatives(state, low, high):
            if live.session_id != call.session_id:
                yield live

    def _heartbeat(self, call: Call, state: State, at: float) -> Iterator[State]:
        if call.result == "over":
            if state.session_id != call.session_id:
                yield state
            return
        for found in self._named(state, call.session_id):
            # Keep the later deadline: a heartbeat never makes the deadline earlier.
            deadline = max(call.deadline_at, found.earliest)
            yield found._replace(earliest=deadline, latest=self._latest(call.session_id, deadline), floor=at)

    def _live(self, call: Call, state: State, at: float) -> State:
        latest = self._latest(call.session_id, call.deadline_at)
        return State(call.session_id, call.kind, call.deadline_at, latest, at, state.gone)

    def _latest(self, session_id: str, deadline: float) -> float:
        return inf if self._timeless or session_id in self._shaky else deadline

    def _named(self, state: State, session_id: str) -> Iterator[State]:
        """The state, if this session is live.

        A live session with an unknown id gets this id, unless an answered call created the session of this id, or the
        session of this id has already ended.
        """
        if state.session_id == session_id:
            yield state
        elif state.session_id == "?" and session_id not in self._made and session_id not in state.gone:
            yield state._replace(session_id=session_id)
