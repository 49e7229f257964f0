"""How the code that works for a session learns of its end, and which messages count when the session has ended."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from tenure.config import SessionsConfig, StreamsConfig, TranscriptionConfig
from tenure.domain.scope import EVERYTHING
from tenure.domain.sessions import ClosedSession, Found, HeartbeatResult, OpenOutcome, OpenResult, Session
from tenure.domain.streams import AttachRequest, AttachResult, StreamUpdate, StreamUpdateResult
from tenure.errors import DatabaseUnavailable, Overloaded, SessionOver
from tenure.http.routes.transcriptions import TranscriptionRoutes
from tenure.sessions.ends import SessionEnds
from tenure.streams import output, stream
from tenure.streams.handlers import DiscardHandler, Message
from tenure.streams.output import SLICES_MAX, Tally, total
from tenure.streams.registry import Streams
from tenure.streams.stream import Stream
from tenure.telemetry.events import SessionClosed, Telemetry
from tests.support.open_requests import NOON
from tests.support.telemetry import RecordedTelemetry
from tests.support.usage import session_between

ONE = "0190b0a0-0000-7000-8000-000000000001"
LIVE = session_between(NOON, NOON + timedelta(hours=1), closed=False)


# Watching


def test_watcher_is_called_until_its_watch_ends() -> None:
    telemetry = RecordedTelemetry()
    ends = SessionEnds(telemetry)
    called: list[str] = []
    with ends.watch(ONE, called.append):
        ends.record(ClosedSession(ONE, "TERMINATED", NOON, "user", "tenant", "capacity"))
        ends.learn(ONE, "TERMINATED")
        ends.learn(LIVE.session_id, "EVICTED")
    ends.learn(ONE, "TERMINATED")
    assert called == ["TERMINATED", "TERMINATED"]
    assert ends._watchers == {}
    assert [event.session_id for event in telemetry.of(SessionClosed)] == [ONE], "`learn` reports no end"


class SlowStore:
    """A store that answers an attach only when the test allows it."""

    batches_in_flight = 1

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def attach_streams(self, attaches: Sequence[AttachRequest]) -> Sequence[AttachResult]:
        self.asked.set()
        await self.may_answer.wait()
        return [AttachResult(Found.LIVE, LIVE, 1, NOON) for _ in attaches]


async def test_attach_returns_over_if_session_ended_before_the_answer_arrived() -> None:
    store: Any = SlowStore()
    ends = SessionEnds(Telemetry())
    streams = Streams(store, StreamsConfig(), SessionsConfig(), DiscardHandler, ends, Telemetry())
    attaching = asyncio.ensure_future(streams.attach(LIVE.session_id, EVERYTHING))
    await store.asked.wait()
    ends.learn(LIVE.session_id, "TERMINATED")
    store.may_answer.set()
    attached = await attaching
    assert attached.session is not None
    assert (attached.found, attached.session.close_reason) == (Found.OVER, "TERMINATED")


# Counting


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (output, stream):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)


def test_total_counts_only_messages_before_an_instant(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    tally = Tally(Telemetry())
    for second in range(5):
        clock.now = 1000.0 + second
        tally.received("hello")
    slices = tally.take()
    assert [total(slices, until).chunks for until in (1000.0, 1002.5, float("inf"))] == [0, 3, 5]
    assert total(tally.take()).chunks == 0
    tally.put_back(slices)
    tally.received("hello")
    assert total(tally.take()).chunks == 6


def test_tally_keeps_a_bounded_number_of_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    tally = Tally(Telemetry())
    for _ in range(10_000):
        clock.now += 0.05
        tally.received("hello")
        assert len(tally._slices) <= SLICES_MAX
    slices = tally.take()
    assert total(slices).chunks == 10_000
    assert 4_500 < total(slices, 1000.0 + 250).chunks <= 5_000


class EndedBatches:
    """Answers the saves of a session that has ended: accepts the counts of the last save, but not of keep-alives."""

    def __init__(self, ended: Session) -> None:
        self._ended = ended
        self.saved: list[StreamUpdate] = []
        self.found_after = timedelta()
        """How long after the end of the session the stream saves, by the database's clock."""

    async def update(self, update: StreamUpdate) -> StreamUpdateResult:
        self.saved.append(update)
        now = (self._ended.closed_at or NOON) + self.found_after
        return StreamUpdateResult(Found.OVER, self._ended, now, counted=update.finished)


class Lines:
    """A socket without a client. It records what the stream sends."""

    def __init__(self) -> None:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent: list[Message] = []
        self.waiting: asyncio.Queue[Message] = asyncio.Queue()

    async def receive(self) -> Message:
        return await self.waiting.get()

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def close(self, code: int) -> None:
        del code


async def test_last_save_omits_messages_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keep-alive finds that the session ended two seconds ago. The database does not add the counts of the
    keep-alive. So the last save sends them again, without the messages that arrived after the end.
    """
    clock = Clock(monkeypatch)
    ended = replace(LIVE, state="closed", closed_at=NOON + timedelta(seconds=10), close_reason="TERMINATED")
    batches: Any = EndedBatches(ended)
    tally = Tally(Telemetry())
    one = Stream(Lines(), AttachResult(Found.LIVE, LIVE, 1, NOON), DiscardHandler, batches, Telemetry(), tally)
    running = asyncio.ensure_future(one.run("{}"))
    for at in (1008.0, 1009.0, 1011.0, 1012.0):
        clock.now = at
        tally.received("hello")
    batches.found_after = timedelta(seconds=2)
    one.keep_alive()
    await running
    assert [(save.finished, save.counted.chunks) for save in batches.saved] == [(False, 4), (True, 2)]


async def test_stream_drops_messages_that_were_buffered_when_its_session_ended() -> None:
    handled: list[Message] = []
    began = asyncio.Event()

    class Recorder(DiscardHandler):
        async def chunk(self, message: Message) -> None:
            handled.append(message)
            began.set()

    ended = replace(LIVE, state="closed", closed_at=NOON + timedelta(seconds=10), close_reason="EVICTED")
    batches: Any = EndedBatches(ended)
    socket = Lines()
    one = Stream(
        socket,
        AttachResult(Found.LIVE, replace(LIVE, state="active"), 1, NOON),
        Recorder,
        batches,
        Telemetry(),
        Tally(Telemetry()),
    )
    running = asyncio.ensure_future(one.run("{}"))
    socket.waiting.put_nowait("in time")
    await began.wait()
    for _ in range(3):
        socket.waiting.put_nowait("late")
    one.session_ended("EVICTED")
    await running
    assert handled == ["in time"]
    assert [(save.finished, save.counted.chunks) for save in batches.saved] == [(True, 1)]
    assert '"reason":"EVICTED"' in str(socket.sent[-1])


# Transcriptions in a session that was already live


class Endless(DiscardHandler):
    """A handler that never finishes its first message."""

    began: asyncio.Event

    async def chunk(self, message: Message) -> None:
        del message
        self.began.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("learned_from", ["operation", "heartbeat", "heartbeat after failures"])
async def test_transcription_in_live_session_stops_when_the_session_ends(
    learned_from: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tenure.http.routes.transcriptions.HEARTBEAT_SECONDS", 0.01)
    failures: list[Exception] = [DatabaseUnavailable("away"), Overloaded("too many requests")]
    ends = SessionEnds(Telemetry())
    Endless.began = asyncio.Event()
    over = HeartbeatResult(Found.OVER, close_reason="TERMINATED")

    async def heartbeat(_: object) -> HeartbeatResult:
        await Endless.began.wait()
        if learned_from == "heartbeat after failures" and failures:
            raise failures.pop()
        if learned_from != "operation":
            ends.learn(LIVE.session_id, "TERMINATED")
        return over

    async def open_session(_: object) -> OpenResult:
        return OpenResult(OpenOutcome.EXISTING, LIVE)

    store: Any = SimpleNamespace(batches_in_flight=1)
    streams = Streams(store, StreamsConfig(), SessionsConfig(), DiscardHandler, ends, Telemetry())
    opener: Any = SimpleNamespace(open=open_session, request=lambda **_: None)
    renewer: Any = SimpleNamespace(heartbeat=heartbeat)
    routes = TranscriptionRoutes(streams, opener, renewer, ends, Endless, TranscriptionConfig())
    transcribing = asyncio.ensure_future(routes._in_live_session(LIVE, bytes(64_000), Endless))
    await Endless.began.wait()
    if learned_from == "operation":
        ends.learn(LIVE.session_id, "TERMINATED")
    with pytest.raises(SessionOver, match="TERMINATED"):
        await transcribing
    assert ends._watchers == {}
