"""Clients for the API: one on httpx, and one on a plain socket for requests that a client library would normalise."""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias
from uuid import uuid4

import httptools
import httpx
import msgspec

Json: TypeAlias = dict[str, Any]

TIMEOUT_SECONDS = 30.0
KEY = ("userObjectId", "tenantObjectId", "capacityId")
JSON = {"content-type": "application/json"}


def open_body(**fields: Any) -> Json:
    """The body of a PUT for a new key; a field set to `...` is omitted."""
    body = {
        "userObjectId": str(uuid4()),
        "tenantObjectId": str(uuid4()),
        "capacityId": str(uuid4()),
        "sessionKind": 1,
        **fields,
    }
    return {name: value for name, value in body.items() if value is not ...}


def same_key(session: Json, **fields: Any) -> Json:
    """The body of a PUT for the key of an existing session."""
    return open_body(**{name: session[name] for name in KEY} | fields)


class Client:
    def __init__(self, address: str, prefix: str = "") -> None:
        self.http = httpx.Client(base_url=address, timeout=TIMEOUT_SECONDS, verify=False)
        self._sessions = f"{prefix}/sessions"

    def put(self, body: Json) -> httpx.Response:
        return self.http.put(self._sessions, json=body)

    def put_raw(self, content: bytes | Iterator[bytes], **headers: str) -> httpx.Response:
        """Header names are given with underscores instead of dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.put(self._sessions, content=content, headers=JSON | named)

    def open(self, **fields: Any) -> Json:
        """Opens a session, or gets the live session of the key, and asserts success."""
        response = self.put(open_body(**fields))
        assert response.status_code in (200, 201), response.text
        return response.json()  # type: ignore[no-any-return]

    def get(self, session_id: str) -> httpx.Response:
        return self.http.get(f"{self._sessions}/{session_id}")

    def end(self, session_id: str) -> httpx.Response:
        return self.http.delete(f"{self._sessions}/{session_id}")

    def list(self, **query: Any) -> httpx.Response:
        return self.http.get(self._sessions, params=query)

    def ids(self, **query: Any) -> Sequence[str]:
        """The ids of the listed sessions, in order."""
        return ids_of(self.list(**query))


def ids_of(response: httpx.Response) -> Sequence[str]:
    assert response.status_code == 200, response.text
    return [session["sessionId"] for session in response.json()["sessions"]]


class RawResponse(msgspec.Struct):
    """One response as received on the socket."""

    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""
    complete: bool = False

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Connection:
    """A socket that sends the given bytes unchanged and reads complete responses, in order."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers: list[RawResponse] = []
        self._parser = httptools.HttpResponseParser(self)

    def send(self, *parts: bytes) -> None:
        for part in parts:
            self._socket.sendall(part)

    def read(self) -> RawResponse:
        """The next final response; skips an interim `100 Continue`."""
        response = self._next()
        return self.read() if response.status == 100 else response

    def read_interim(self) -> int:
        return self._next().status

    def _next(self) -> RawResponse:
        while not (self._answers and self._answers[0].complete):
            data = self._socket.recv(65536)
            assert data, f"connection closed before the response was complete: {self._answers}"
            self._parser.feed_data(data)
        return self._answers.pop(0)

    def is_closed_by_peer(self) -> bool:
        """Waits until the peer closes the connection; fails if it sends anything before."""
        data = self._socket.recv(65536)
        assert not data, f"expected the end of the connection, got {data!r}"
        return True

    def close(self) -> None:
        self._socket.close()

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        self._answers.append(RawResponse(headers={}))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._answers[-1].headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self._answers[-1].body += body

    def on_message_complete(self) -> None:
        self._answers[-1].status = self._parser.get_status_code()
        self._answers[-1].complete = True


@contextmanager
def connected(port: int) -> Iterator[Connection]:
    connection = Connection(port)
    try:
        yield connection
    finally:
        connection.close()


def request(
    body: Json | bytes = b"",
    *headers: str,
    method: str = "PUT",
    path: str = "/sessions",
    version: str = "1.1",
    media_type: str | None = "application/json",
    length: int | None = None,
) -> bytes:
    """The bytes of a request. With the defaults, the request takes the hot lane. `length` is sent as Content-Length in
    place of the length of the body.
    """
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost"]
    if media_type is not None:
        lines.append(f"Content-Type: {media_type}")
    if not any(header.lower().startswith("transfer-encoding") for header in headers):
        lines.append(f"Content-Length: {len(content) if length is None else length}")
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))
