"""The transcription handler with recognisers that work, fail, crash or hang."""

import asyncio
import errno
import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tenure.transcription import recognizer_process
from tenure.transcription.handler import TranscriptionHandler
from tenure.transcription.recognizer_process import MESSAGE_MAX_BYTES, RecognizerFailed
from tenure.transcription.recognizers import check_options
from tenure.transcription.wav import BYTES_PER_SECOND
from tenure.transcription.worker import LENGTH
from tests.support.processes import eventually
from tests.transcription.conftest import MakeHandler
from tests.transcription.outputs import NO_SESSION, Recorder
from tests.transcription.stand_ins import (
    Chatty,
    Crashing,
    Failing,
    Forgetful,
    Hanging,
    HoldsTheInterpreter,
    Letters,
    Unloadable,
)

WAIT_SECONDS = 20


@pytest.fixture
def output() -> Recorder:
    return Recorder()


async def test_text_message_returns_error_and_stream_continues(with_stand_in: MakeHandler, output: Recorder) -> None:
    await run(with_stand_in(Letters), output, "hello", b"one.")
    assert output.sent == [("error", "UNSUPPORTED"), ("final", "one")]


async def test_odd_byte_is_kept_for_next_message(with_stand_in: MakeHandler, output: Recorder) -> None:
    await run(with_stand_in(Letters), output, b"one", b"tw", b"o")
    assert output.sent == [("partial", "on"), ("partial", "onet"), ("partial", "onetwo"), ("final", "onetwo")]


async def test_empty_final_replaces_retracted_partial(with_stand_in: MakeHandler, output: Recorder) -> None:
    await run(with_stand_in(Forgetful), output, b"one ")
    assert output.sent == [("partial", "one"), ("final", "")]


async def test_long_message_returns_every_final(with_stand_in: MakeHandler, output: Recorder) -> None:
    await run(with_stand_in(Letters), output, b"a." * MESSAGE_MAX_BYTES)
    assert output.texts("final") == ["a"] * MESSAGE_MAX_BYTES


async def test_library_output_does_not_corrupt_results(with_stand_in: MakeHandler, output: Recorder) -> None:
    await run(with_stand_in(Chatty), output, b"one.")
    assert output.sent == [("final", "one")]


async def test_event_loop_is_not_blocked_while_native_code_holds_the_gil(
    with_stand_in: MakeHandler, output: Recorder, tmp_path: Path
) -> None:
    faulthandler.dump_traceback_later(WAIT_SECONDS, exit=True)  # no other timeout works if this process blocks
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    handler = await opened(with_stand_in(HoldsTheInterpreter), output)
    decoding = asyncio.create_task(handler.chunk(padded(str(pipe))))
    await eventually(lambda: opens(pipe), WAIT_SECONDS, "the recogniser decodes")
    await decoding
    await handler.finish()
    faulthandler.cancel_dump_traceback_later()
    assert output.texts("final") == ["opened"]


async def test_cancelled_message_does_not_lose_later_text(with_stand_in: MakeHandler, output: Recorder) -> None:
    handler = await opened(with_stand_in(Letters), output)
    decoding = asyncio.create_task(handler.chunk(b"one."))
    await asyncio.sleep(0)
    decoding.cancel()
    await asyncio.wait([decoding])
    await handler.chunk(b"two.")
    await handler.finish()
    assert output.sent == [("final", "one"), ("final", "two")]


async def test_failing_recognizer_raises_with_its_error(with_stand_in: MakeHandler, output: Recorder) -> None:
    handler = await opened(with_stand_in(Failing), output)
    with pytest.raises(RecognizerFailed, match="ValueError: 4 bytes of noise"):
        await handler.chunk(b"one.")
    await handler.finish()


async def test_crashing_recognizer_raises_with_exit_code(with_stand_in: MakeHandler, output: Recorder) -> None:
    handler = await opened(with_stand_in(Crashing), output)
    with pytest.raises(RecognizerFailed, match="exited with 7"):
        await handler.chunk(b"one.")
    await handler.finish()


async def test_hanging_recognizer_raises_after_timeout(
    with_stand_in: MakeHandler, output: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = await opened(with_stand_in(Hanging), output)
    monkeypatch.setattr(recognizer_process, "REPLY_SECONDS_MAX", 0.1)
    with pytest.raises(RecognizerFailed, match=r"did not decode 4 bytes within 0\.1 s"):
        await handler.chunk(b"one.")
    await handler.finish()


async def test_open_raises_when_model_cannot_be_loaded(with_stand_in: MakeHandler, output: Recorder) -> None:
    with pytest.raises(RecognizerFailed, match="RuntimeError: no such model"):
        await opened(with_stand_in(Unloadable), output)


async def test_no_child_process_is_left_after_success_or_failure(with_stand_in: MakeHandler, output: Recorder) -> None:
    before = psutil.Process().children()
    await run(with_stand_in(Letters), output, b"one.")
    for recognizer in (Failing, Crashing):
        handler = await opened(with_stand_in(recognizer), output)
        await asyncio.gather(handler.chunk(b"one."), return_exceptions=True)
        await handler.finish()
    await asyncio.gather(opened(with_stand_in(Unloadable), output), return_exceptions=True)
    assert psutil.Process().children() == before


@pytest.mark.slow
async def test_busy_recognizer_is_killed_when_finish_is_cancelled(with_stand_in: MakeHandler, output: Recorder) -> None:
    before = psutil.Process().children()
    handler = await opened(with_stand_in(Hanging), output)
    decoding = asyncio.create_task(handler.chunk(b"one."))
    await asyncio.sleep(0)
    decoding.cancel()
    finishing = asyncio.create_task(handler.finish())
    await asyncio.wait([decoding, finishing], timeout=0.01)
    finishing.cancel()
    await asyncio.wait([finishing])
    assert psutil.Process().children() == before


async def test_finish_without_open_does_nothing(with_stand_in: MakeHandler) -> None:
    await with_stand_in(Letters).finish()


def test_worker_exits_when_its_input_is_closed() -> None:
    """The worker ignores SIGTERM. The end of its input is the only sign that the instance was killed."""
    options = check_options(grammar="digits")
    command = [sys.executable, "-m", "tenure.transcription.worker", options.recognizer, options.model, options.grammar]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdout.readline()
    worker.terminate()
    worker.stdin.close()
    worker.stdout.close()
    assert worker.wait(WAIT_SECONDS) == 0


def test_worker_exits_silently_when_its_reply_has_no_reader() -> None:
    """An instance that is killed while audio is decoded must not leave a traceback in the log."""
    options = check_options(grammar="digits")
    command = [sys.executable, "-m", "tenure.transcription.worker", options.recognizer, options.model, options.grammar]
    pipe = subprocess.PIPE
    worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert worker.stdout is not None
    worker.stdout.readline()
    worker.stdout.close()
    second = bytes(BYTES_PER_SECOND)
    _, errors = worker.communicate(LENGTH.pack(len(second)) + second, WAIT_SECONDS)
    assert (worker.returncode, errors) == (0, b"")


async def run(handler: TranscriptionHandler, output: Recorder, *messages: bytes | str) -> None:
    await opened(handler, output)
    for message in messages:
        await handler.chunk(message)
    await handler.finish()


async def opened(handler: TranscriptionHandler, output: Recorder) -> TranscriptionHandler:
    await handler.open(NO_SESSION, output)
    return handler


def padded(text: str) -> bytes:
    """The text, padded to whole samples of two bytes."""
    return text.encode() + b" " * (len(text) % 2)


def opens(pipe: Path) -> bool:
    """Whether a reader has opened the pipe, or waits to open it. A reader that waits can then continue."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return False
    return True
