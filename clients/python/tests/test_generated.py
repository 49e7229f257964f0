"""The files of the sync client equal what `generate_sync.py` generates from the async client."""

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[1] / "tools" / "generate_sync.py"


def test_sync_client_is_up_to_date() -> None:
    checked = subprocess.run([sys.executable, TOOL, "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
