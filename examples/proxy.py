"""A proxy that keeps many sessions alive for its users, with one heartbeat request per thousand sessions.

TENURE_URL=http://127.0.0.1:8080 python examples/proxy.py --sessions 1000 --seconds 30
"""

import argparse
import asyncio
import sys
from uuid import uuid4

from tenure_client import AsyncClient, AsyncHeldSession

AT_ONCE = 32
LEASE_SECONDS = 60


async def run(sessions: int, seconds: float) -> int:
    """Open sessions, keep them for a while, and return how many were lost."""
    gate = asyncio.Semaphore(AT_ONCE)
    tenant, capacity = uuid4(), uuid4()
    async with AsyncClient() as client:

        async def connect() -> AsyncHeldSession:
            async with gate:
                hold = client.hold(user=uuid4(), tenant=tenant, capacity=capacity, kind=1, lease_seconds=LEASE_SECONDS)
                return await hold.open()

        async def disconnect(session: AsyncHeldSession) -> None:
            async with gate:
                await session.aclose()

        held = await asyncio.gather(*(connect() for _ in range(sessions)))
        for session in held:
            # A real proxy would disconnect the user of the session here.
            session.lost.on(lambda loss: print(f"lost a session: {loss.reason}", file=sys.stderr))
        print(f"holding {len(held)} sessions")
        await asyncio.sleep(seconds)
        lost = sum(bool(session.lost) for session in held)
        await asyncio.gather(*map(disconnect, held))
    print(f"kept {len(held) - lost} of {len(held)} sessions for {seconds:g} s")
    return lost


def main() -> int:
    parser = argparse.ArgumentParser(description="Keeps many sessions alive.")
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    arguments = parser.parse_args()
    return 1 if asyncio.run(run(arguments.sessions, arguments.seconds)) else 0


if __name__ == "__main__":
    sys.exit(main())
