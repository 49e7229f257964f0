"""Installs a package that registers the jobs of an application as entry points."""

import os
from collections.abc import Mapping
from pathlib import Path

METADATA = "Metadata-Version: 2.1\nName: pacemaker\nVersion: 1.0\n"
MODULE = """
import structlog

class Beat:
    interval_seconds = 1_000_000.0

    async def run(self, run):
        structlog.get_logger().info("beat", epoch=run.fence.epoch, tick_at=run.tick_at and run.tick_at.isoformat())

class Broken:
    def __init__(self):
        raise ValueError("on purpose")
"""


def install_jobs(folder: Path, jobs: Mapping[str, str]) -> dict[str, str]:
    """Installs the package in `folder`, and returns environment variables that make instances load its jobs. `jobs`
    maps job names to classes of MODULE.
    """
    distribution = folder / "pacemaker-1.0.dist-info"
    distribution.mkdir()
    (folder / "pacemaker.py").write_text(MODULE)
    (distribution / "METADATA").write_text(METADATA)
    lines = [f"{name} = pacemaker:{job}" for name, job in jobs.items()]
    (distribution / "entry_points.txt").write_text("[tenure.jobs]\n" + "\n".join(lines) + "\n")
    return {"PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])}
