"""The example `transcribe.py` streams a WAV file to a running instance and prints the text."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.instances import RunningInstance, kill_all
from tests.transcription.speech import errors, speak, wav

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "transcribe.py"
SPOKEN = "four two nine one five"
RUN_SECONDS = 60


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    folder = tmp_path_factory.mktemp("transcription")
    settings = {"TENURE_STREAMS__HANDLER": "transcription", "TENURE_STREAMS__OPTIONS__GRAMMAR": "digits"}
    running = RunningInstance(f"sqlite:///{folder / 'tenure.db'}", folder, **settings)  # type: ignore[arg-type]
    try:
        yield running.wait_until_ready()
    finally:
        kill_all([running])


def test_example_prints_partials_and_final_text_and_stops_session(instance: RunningInstance, tmp_path: Path) -> None:
    pcm = speak(SPOKEN)
    ran = transcribe(instance, recording(tmp_path, wav(pcm)))
    lines = ran.stdout.splitlines()
    finals = [line for line in lines if not line.startswith("...")]
    assert ran.returncode == 0, output_of(ran, instance)
    assert lines.index(finals[0]) > 0, output_of(ran, instance)
    assert errors(SPOKEN.split(), " ".join(finals).split()) <= 2, output_of(ran, instance)
    (session,) = httpx.get(f"{instance.address}/sessions").json()["sessions"]
    assert session["closeReason"] == "STOPPED", output_of(ran, instance)
    assert session["stream"]["audioDurationMs"] == len(pcm) // 32, output_of(ran, instance)


def test_example_reports_unsupported_wav_file(instance: RunningInstance, tmp_path: Path) -> None:
    ran = transcribe(instance, recording(tmp_path, wav(b"", rate=8000)))
    assert ran.returncode == 2
    assert "body: must be mono, 16000 Hz and 16 bits, not 1 channel(s), 8000 Hz and 16 bits" in ran.stderr


def recording(folder: Path, content: bytes) -> Path:
    path = folder / "recording.wav"
    path.write_bytes(content)
    return path


def transcribe(instance: RunningInstance, path: Path) -> "subprocess.CompletedProcess[str]":
    url = re.sub("^http", "ws", instance.address) + "/sessions/stream"
    command = [sys.executable, str(EXAMPLE), str(path), "--url", url]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)


def output_of(ran: "subprocess.CompletedProcess[str]", instance: RunningInstance) -> str:
    return f"exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}\n{instance.log()}"
