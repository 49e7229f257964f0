"""A small HTTP/1.1 client that records when it sent each request, and the response."""

import asyncio
from typing import Any

import msgspec

from proof.history import LOST, REFUSED, TIMEOUT, History, Operation, now

ANSWER_SECONDS = 10.0
CONNECT_SECONDS = 5.0
LINE_MAX = 1 << 20
KEPT = (
    *("sessionId", "status", "sessionStartUtc", "sessionEndUtc", "leaseExpiresAt", "closeReason", "previousSessionId"),
    *("sessionKind", "tenantObjectId", "isActive", "code", "submissionId", "key", "publicId", "leases", "count"),
)
"""The fields of answers that are recorded."""


class HttpClient:
    """Sends one request after the other to one port, and never retries a request."""

    def __init__(self, history: History, kind: str, port: int, via: str, credential: tuple[str, str]) -> None:
        """`via`: the name of the instance, or `proxy`. `credential`: a label for the records, and the API key."""
        self._history = history
        self.kind = kind
        self.port = port
        self.via = via
        self.label, self._key = credential
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(
        self, method: str, path: str, body: Any = None, headers: tuple[str, ...] = (), **fields: Any
    ) -> Operation:
        """Sends a request and records it, with or without an answer.

        `fields`: more fields of the recorded operation, such as `action` and `key`.
        """
        operation = Operation(client=self.kind, via=self.via, credential=self.label, **fields)
        operation.called_at = now()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                operation.status, operation.answer = await self._exchange(method, path, body, headers)
        except TimeoutError:
            operation.failure = TIMEOUT
        except ConnectionRefusedError:
            operation.failure = REFUSED
        except (OSError, EOFError, ValueError):
            operation.failure = LOST
        operation.returned_at = now()
        if operation.failure:
            self.close()
        self._history.operations.append(operation)
        return operation

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    async def _exchange(self, method: str, path: str, body: Any, headers: tuple[str, ...]) -> tuple[int, Any]:
        if self._streams is None or self._streams[0].at_eof():
            self.close()
            self._streams = await asyncio.open_connection("127.0.0.1", self.port, limit=LINE_MAX)
        reader, writer = self._streams
        writer.write(request_bytes(method, path, self._key, body, headers))
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        content = await reader.readexactly(int(fields.get("content-length", "0")))
        if fields.get("connection") == "close":
            self.close()
        return int(head.split()[1]), _kept(msgspec.json.decode(content)) if content else None


def _kept(answer: Any) -> Any:
    """The parts of an answer that the checks need. A long run has too many answers to keep them whole."""
    if not isinstance(answer, dict):
        return answer
    kept = {name: answer[name] for name in KEPT if name in answer}
    listed = answer.get("sessions", answer.get("events"))
    if isinstance(listed, list):
        kept["tenants"] = sorted({each["tenantObjectId"] for each in listed})
    return kept


def request_bytes(method: str, path: str, key: str, body: Any, headers: tuple[str, ...] = ()) -> bytes:
    content = b"" if body is None else msgspec.json.encode(body)
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}", *headers]
    if key:
        lines.append(f"Authorization: Bearer {key}")
    if content:
        lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, "", ""]).encode() + content
