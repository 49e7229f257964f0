"""What goes to the client of a stream: results of its handler, as messages, and counted."""

import asyncio
from typing import Any

import msgspec

from tenure.streams.handlers import Message
from tenure.streams.sockets import Socket
from tenure.streams.tally import Tally


class SocketOutput:
    def __init__(self, socket: Socket, tally: Tally) -> None:
        self._socket = socket
        self._tally = tally

    async def message(self, content: Message) -> None:
        await self._send(content, "messages_sent")

    async def partial(self, text: str) -> None:
        await self._send(as_json({"type": "partial", "text": text}), "partials_sent")

    async def final(self, text: str) -> None:
        await self._send(as_json({"type": "final", "text": text}), "finals_sent")

    async def error(self, code: str, message: str) -> None:
        await self._send(as_json({"type": "error", "code": code, "message": message}), "errors_sent")

    async def _send(self, message: Message, kind: str) -> None:
        if not self._socket.gone.done():
            self._tally.sent(kind)
            await self._socket.send(message)
        # A handler that does nothing but send must leave the others their turn, even if nobody listens any more.
        await asyncio.sleep(0)


def as_json(content: dict[str, Any]) -> str:
    return msgspec.json.encode(content).decode()
