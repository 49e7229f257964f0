"""The interface through which streams use a connection. `server/websocket.py` implements it."""

import asyncio
from enum import IntEnum
from typing import Protocol

from tenure.errors import TenureError
from tenure.streams.handlers import Message


class CloseCode(IntEnum):
    """The WebSocket close codes that streams use."""

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
    """The client closed the connection, or the connection was lost."""


class UnreadableMessage(TenureError):
    """A message is too big or malformed, the client has sent too many pings or pongs, or the client's credential is not
    accepted any more. No further message will be read.
    """

    def __init__(self, close_code: CloseCode, code: str, detail: str) -> None:
        super().__init__(detail)
        self.close_code = close_code
        self.code = code
        self.detail = detail


class Socket(Protocol):
    gone: asyncio.Future[None]
    """Done as soon as the connection is lost, even if received messages have not been read yet."""

    async def receive(self) -> Message:
        """Return the next message. Raise `UnreadableMessage` in place of a message that is not accepted, and
        `SocketGone` if the connection is lost and no received message is left.
        """

    async def send(self, message: Message) -> None:
        """Send a message, and wait while the client is slow. Does nothing after the connection is lost."""

    async def close(self, code: CloseCode) -> None:
        """Send a close frame, and wait briefly for the close frame of the client."""
