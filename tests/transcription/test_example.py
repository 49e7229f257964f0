"""The example against a running instance: WAV file, WebSocket, session and text."""

import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.instances import RunningInstance
from tests.transcription.speech import errors, speak, wav

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "transcribe.py"
SAID = "four two nine one five"
RUN_SECONDS = 60


@pytest.fixture
def instance(start: type[RunningInstance], tmp_path: Path) -> RunningInstance:
    settings = {"TENURE_STREAMS__HANDLER": "transcription", "TENURE_STREAMS__OPTIONS__GRAMMAR": "digits"}
    running = start(f"sqlite:///{tmp_path / 'tenure.db'}", **settings)  # type: ignore[call-arg]
    return running.wait_until_ready()


def test_prints_the_text_as_it_comes(instance: RunningInstance, tmp_path: Path) -> None:
    ran = transcribe(instance, recording(tmp_path, wav(speak(SAID))))
    lines = ran.stdout.splitlines()
    finals = [line for line in lines if not line.startswith("...")]
    assert ran.returncode == 0, told(ran, instance)
    assert lines.index(finals[0]) > 0, told(ran, instance)
    assert errors(SAID.split(), " ".join(finals).split()) <= 2, told(ran, instance)


def test_leaves_a_session_that_its_client_stopped(instance: RunningInstance, tmp_path: Path) -> None:
    pcm = speak(SAID)
    ran = transcribe(instance, recording(tmp_path, wav(pcm)))
    (session,) = httpx.get(f"{instance.address}/sessions").json()["sessions"]
    assert session["closeReason"] == "STOPPED", told(ran, instance)
    assert session["stream"]["audioDurationMs"] == len(pcm) // 32, told(ran, instance)


def test_says_what_is_wrong_with_a_file(instance: RunningInstance, tmp_path: Path) -> None:
    ran = transcribe(instance, recording(tmp_path, wav(b"", rate=8000)))
    assert ran.returncode == 2
    assert "body: must be mono, 16000 Hz and 16 bits, not 1 channels, 8000 Hz and 16 bits" in ran.stderr


def recording(folder: Path, content: bytes) -> Path:
    path = folder / "recording.wav"
    path.write_bytes(content)
    return path


def transcribe(instance: RunningInstance, path: Path) -> "subprocess.CompletedProcess[str]":
    url = re.sub("^http", "ws", instance.address) + "/sessions/stream"
    command = [sys.executable, str(EXAMPLE), str(path), "--url", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)


def told(ran: "subprocess.CompletedProcess[str]", instance: RunningInstance) -> str:
    return f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}\n{instance.log()}"
