"""Runs all benchmarks, one after the other."""

import subprocess
import sys
from pathlib import Path

BARS = (
    "created",
    "existing",
    "lone_client",
    "sqlite_created",
    "growth",
    "ten_million",
    "lists",
    "stories",
    "memory",
    "sqlite_memory",
    "heartbeats",
    "limits",
    "sweep",
    "ensemble",
    "streams",
    "submissions",
    "flood",
    "usage",
    "usage_sums",
    "access",
    "events",
    "sight",
)


def main() -> None:
    for bar in BARS:
        print(f"== {bar}", flush=True)
        subprocess.run([sys.executable, str(Path(__file__).with_name(f"{bar}.py"))], check=True)


if __name__ == "__main__":
    main()
