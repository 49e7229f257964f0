"""The cost of holding sessions with the Python client: requests per heartbeat interval, and the client's own CPU time.

The service runs on SQLite, with one worker, on the same machine as the measured process.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from uuid import uuid4

from tenure_client import AsyncClient, AsyncHeldSession

LEASE_SECONDS = 60
INTERVAL = 5
"""The heartbeat interval of a session with a lease of LEASE_SECONDS: a twelfth of the lease, in seconds."""
ROUNDS = 6
AT_ONCE = 64


async def hold(url: str, sessions: int) -> None:
    tenant, capacity = uuid4(), uuid4()
    gate = asyncio.Semaphore(AT_ONCE)
    async with AsyncClient(url) as client:

        async def connect() -> AsyncHeldSession:
            async with gate:
                block = client.hold(user=uuid4(), tenant=tenant, capacity=capacity, lease_seconds=LEASE_SECONDS)
                return await block.open()

        began = time.perf_counter()
        held = await asyncio.gather(*(connect() for _ in range(sessions)))
        opened = time.perf_counter() - began
        keeper = client._shared.keeper()  # noqa: SLF001
        await asyncio.sleep(2 * INTERVAL)
        requests, cpu, began = keeper.requests, time.process_time(), time.perf_counter()
        await asyncio.sleep(ROUNDS * INTERVAL)
        took = time.perf_counter() - began
        share = (time.process_time() - cpu) / took
        per_interval = (keeper.requests - requests) / took * INTERVAL
        lost = sum(bool(session.lost) for session in held)
        print(
            f"{sessions} sessions: opened in {opened:.1f} s, {per_interval:.1f} requests per interval, "
            f"{share:.2%} of a core, {lost} lost"
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "tenure", "serve", "--port", "18473", "--database", f"sqlite:///{folder}/t.db"]
        with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr) as service:
            try:
                deadline = time.monotonic() + 30
                while "http://" not in log.read_text() and time.monotonic() < deadline:
                    time.sleep(0.1)
                for sessions in map(int, sys.argv[1:] or ("500", "10000")):
                    asyncio.run(hold("http://127.0.0.1:18473", sessions))
            finally:
                service.terminate()


if __name__ == "__main__":
    main()
