"""What a stream needs of a connection. `http/websockets.py` is the one that clients use."""

import asyncio
from enum import IntEnum
from typing import Protocol

from tenure.errors import TenureError
from tenure.streams.handlers import Message


class CloseCode(IntEnum):
    """Why the server closed a connection, as clients see it."""

    NORMAL = 1000
    UNREADABLE = 1007
    REFUSED = 1008
    TOO_BIG = 1009
    FAILED = 1011
    SHUTDOWN = 1012
    TRY_AGAIN_LATER = 1013
    UNKNOWN = 4404
    REPLACED = 4409
    OVER = 4410


class SocketGone(TenureError):
    """The client has closed the connection, or it broke."""


class UnreadableMessage(TenureError):
    """A message is too big, or not what it says it is. No other will be read."""

    def __init__(self, close_code: CloseCode, code: str, detail: str) -> None:
        super().__init__(detail)
        self.close_code = close_code
        self.code = code
        self.detail = detail


class Socket(Protocol):
    gone: asyncio.Future[None]
    """Done as soon as the connection is lost, even if messages are still waiting to be received."""

    async def receive(self) -> Message:
        """The next message; `SocketGone` after the last, `UnreadableMessage` where one could not be read."""

    async def send(self, message: Message) -> None:
        """Waits while the client is slow. After the connection is lost, what is sent goes nowhere."""

    async def close(self, code: CloseCode) -> None:
        """Says goodbye and waits for the client's, for a moment."""
