"""What an instance asks of its host."""

import subprocess
import sys

ASK = """
import resource
from tenure.serving import allow_many_connections
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(hard, 4096)))
allow_many_connections()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_takes_as_many_files_as_it_may_have() -> None:
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True, check=True, timeout=30)
    assert asked.stdout.split() == ["4096", "4096"]
