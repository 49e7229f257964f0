"""Runs all benchmarks that have a bar (a performance target, see RESULTS.md), one after the other. At the end, prints
the bars that were missed.

The exit code is 1 if a bar was missed or a benchmark failed. `--only created,usage` runs only these two benchmarks.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

BARS = (
    "created",
    "existing",
    "lone_client",
    "limits",
    "heartbeats",
    "submissions",
    "sqlite_created",
    "usage",
    "sight",
    "access",
    "events",
    "sweep",
    "streams",
    "flood",
    "ensemble",
    "usage_sums",
    "stories",
    "console",
    "growth",
    "ten_million",
    "lists",
    "memory",
    "sqlite_memory",
)
MISSED = "FAIL "


def run(name: str) -> list[str]:
    """Runs a benchmark and shows its output. Returns a line for each missed bar, and one if the exit code is not 0."""
    print(f"== {name}", flush=True)
    began, missed = time.monotonic(), []
    command = [sys.executable, "-u", str(Path(__file__).with_name(f"{name}.py"))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            if line.startswith(MISSED):
                missed.append(line.strip())
    if process.returncode:
        missed.append(f"{MISSED}{name}: exit code {process.returncode}")
    print(f"   {name}: {(time.monotonic() - began) / 60:.1f} minutes", flush=True)
    return missed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=",".join(BARS), help="the benchmarks to run, separated by commas")
    missed = [line for name in parser.parse_args().only.split(",") for line in run(name)]
    print("all bars are met" if not missed else "\n".join(["== missed", *missed]))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
