"""What the handler makes of a recogniser, whatever the recogniser does."""

import asyncio
import errno
import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tenure.transcription import decoding
from tenure.transcription.decoding import PIECE_BYTES, RecognizerFailed
from tenure.transcription.handler import TranscriptionHandler
from tenure.transcription.recognizers import check_options
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


async def test_answers_a_text_message_with_an_error_and_goes_on(with_stand_in: MakeHandler, output: Recorder) -> None:
    await run(with_stand_in(Letters), output, "hello", b"one.")
    assert output.sent == [("error", "UNSUPPORTED"), ("final", "one")]


async def test_keeps_an_odd_byte_for_the_next_message(with_stand_in: MakeHandler, output: Recorder) -> None:
    await run(with_stand_in(Letters), output, b"one", b"tw", b"o")
    assert output.sent == [("partial", "on"), ("partial", "onet"), ("partial", "onetwo"), ("final", "onetwo")]


async def test_takes_a_partial_back_that_turned_out_to_be_nothing(with_stand_in: MakeHandler, output: Recorder) -> None:
    await run(with_stand_in(Forgetful), output, b"one ")
    assert output.sent == [("partial", "one"), ("final", "")]


async def test_gives_texts_while_a_long_message_is_decoded(with_stand_in: MakeHandler, output: Recorder) -> None:
    await run(with_stand_in(Letters), output, b"a." * PIECE_BYTES)
    assert output.texts("final") == ["a"] * PIECE_BYTES


async def test_what_a_library_prints_does_not_come_between(with_stand_in: MakeHandler, output: Recorder) -> None:
    await run(with_stand_in(Chatty), output, b"one.")
    assert output.sent == [("final", "one")]


async def test_does_not_hold_up_the_event_loop_while_native_code_holds_the_interpreter(
    with_stand_in: MakeHandler, output: Recorder, tmp_path: Path
) -> None:
    faulthandler.dump_traceback_later(WAIT_SECONDS, exit=True)  # nothing else could end a test that holds it itself
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    handler = await opened(with_stand_in(HoldsTheInterpreter), output)
    hearing = asyncio.create_task(handler.chunk(padded(str(pipe))))
    await eventually(lambda: opens(pipe), WAIT_SECONDS, "the recogniser decodes")
    await hearing
    await handler.finish()
    faulthandler.cancel_dump_traceback_later()
    assert output.texts("final") == ["opened"]


async def test_a_cancelled_message_loses_no_text_of_the_next(with_stand_in: MakeHandler, output: Recorder) -> None:
    handler = await opened(with_stand_in(Letters), output)
    hearing = asyncio.create_task(handler.chunk(b"one."))
    await asyncio.sleep(0)
    hearing.cancel()
    await asyncio.wait([hearing])
    await handler.chunk(b"two.")
    await handler.finish()
    assert output.sent == [("final", "one"), ("final", "two")]


async def test_a_recogniser_that_fails_says_why(with_stand_in: MakeHandler, output: Recorder) -> None:
    handler = await opened(with_stand_in(Failing), output)
    with pytest.raises(RecognizerFailed, match="ValueError: 4 bytes of noise"):
        await handler.chunk(b"one.")
    await handler.finish()


async def test_a_recogniser_that_crashes_says_how(with_stand_in: MakeHandler, output: Recorder) -> None:
    handler = await opened(with_stand_in(Crashing), output)
    with pytest.raises(RecognizerFailed, match="ended with 7"):
        await handler.chunk(b"one.")
    await handler.finish()


async def test_a_recogniser_that_hangs_is_given_up(
    with_stand_in: MakeHandler, output: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = await opened(with_stand_in(Hanging), output)
    monkeypatch.setattr(decoding, "ANSWER_SECONDS_MAX", 0.1)
    with pytest.raises(RecognizerFailed, match=r"did not decode 4 bytes within 0\.1 s"):
        await handler.chunk(b"one.")
    await handler.finish()


async def test_a_model_that_cannot_be_loaded_fails_the_opening(with_stand_in: MakeHandler, output: Recorder) -> None:
    with pytest.raises(RecognizerFailed, match="RuntimeError: no such model"):
        await opened(with_stand_in(Unloadable), output)


async def test_leaves_no_process_behind_however_it_ended(with_stand_in: MakeHandler, output: Recorder) -> None:
    before = psutil.Process().children()
    await run(with_stand_in(Letters), output, b"one.")
    for recognizer in (Failing, Crashing):
        handler = await opened(with_stand_in(recognizer), output)
        await asyncio.gather(handler.chunk(b"one."), return_exceptions=True)
        await handler.finish()
    await asyncio.gather(opened(with_stand_in(Unloadable), output), return_exceptions=True)
    assert psutil.Process().children() == before


@pytest.mark.slow
async def test_a_recogniser_that_still_computes_is_killed_at_the_end(
    with_stand_in: MakeHandler, output: Recorder
) -> None:
    before = psutil.Process().children()
    handler = await opened(with_stand_in(Hanging), output)
    hearing = asyncio.create_task(handler.chunk(b"one."))
    await asyncio.sleep(0)
    hearing.cancel()
    finishing = asyncio.create_task(handler.finish())
    await asyncio.wait([hearing, finishing], timeout=0.01)
    finishing.cancel()
    await asyncio.wait([finishing])
    assert psutil.Process().children() == before


async def test_finishing_what_was_never_opened_is_harmless(with_stand_in: MakeHandler) -> None:
    await with_stand_in(Letters).finish()


def test_the_process_ends_with_the_instance_that_started_it() -> None:
    """The end of its input is all it sees of an instance that was killed."""
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


async def run(handler: TranscriptionHandler, output: Recorder, *messages: bytes | str) -> None:
    await opened(handler, output)
    for message in messages:
        await handler.chunk(message)
    await handler.finish()


async def opened(handler: TranscriptionHandler, output: Recorder) -> TranscriptionHandler:
    await handler.open(NO_SESSION, output)
    return handler


def padded(text: str) -> bytes:
    """As whole samples."""
    return text.encode() + b" " * (len(text) % 2)


def opens(pipe: Path) -> bool:
    """Whether somebody is at the other end; lets it go if so."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return False
    return True
