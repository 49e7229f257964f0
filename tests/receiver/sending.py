"""A sender on a plain socket, because some responses of the receiver are not HTTP."""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tenure.clock import wall_microseconds
from tenure.signing import signed_headers

SECONDS = 10
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_b2xkIHNlY3JldCBvZiB0aGUgcmVjZWl2ZXI="


class Received(NamedTuple):
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def reason(self) -> str:
        return self.content.decode().rstrip("\n")

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.content)


async def exchange(address: str, sent: bytes) -> bytes:
    """Sends these bytes, and returns all bytes that arrive until the receiver closes the connection. Returns no bytes
    if the receiver resets the connection.
    """
    reader, writer = await connect(address)
    try:
        writer.write(sent)
        async with asyncio.timeout(SECONDS):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(address)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def send(
    address: str, path: str, body: bytes = b"", method: str = "GET", headers: Mapping[str, str] | None = None
) -> Received:
    return parsed(await exchange(address, request(path, body, method, {"connection": "close", **(headers or {})})))


async def deliver(address: str, key: str, body: bytes = b"{}", path: str = "/usages", **headers: str) -> Received:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await send(address, path, body, "POST", {"idempotency-key": key, **named})


async def deliver_signed(
    address: str, key: str, body: bytes = b"{}", *by: str, age: int = 0, **headers: str
) -> Received:
    """Signs with each of the secrets in `by`; with SECRET if `by` is empty. `age` is how many seconds ago the delivery
    was signed.
    """
    timestamp = wall_microseconds() // 1_000_000 - age
    signed = signed_headers(by or [SECRET], key, timestamp, body)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await send(address, "/usages", body, "POST", {"idempotency-key": key, **signed, **named})


async def set_faults(address: str, faults: object) -> Received:
    return await send(address, "/_faults", msgspec.json.encode(faults), "PUT")


async def totals(address: str) -> Any:
    return (await send(address, "/_totals")).json


async def keys(address: str, query: str = "") -> Any:
    return (await send(address, f"/_keys{query}")).json["keys"]


def request(path: str, body: bytes = b"", method: str = "POST", headers: Mapping[str, str] | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: receiver", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def parsed(response: bytes) -> Received:
    head, _, content = response.partition(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    assert status_line.startswith("HTTP/1.1 "), response
    return Received(int(status_line.split()[1]), dict(line.split(": ", 1) for line in lines), content)
