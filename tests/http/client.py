"""The API in as few words as a test needs: over httpx, and over a bare socket where a client library would tidy up."""

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


def wish(**fields: Any) -> Json:
    """The body of a PUT for a key that nobody else uses; a field of `...` is left out."""
    body = {
        "userObjectId": str(uuid4()),
        "tenantObjectId": str(uuid4()),
        "capacityId": str(uuid4()),
        "sessionKind": 1,
        **fields,
    }
    return {name: value for name, value in body.items() if value is not ...}


def same_key(session: Json, **fields: Any) -> Json:
    """The body of another PUT for the key of a session."""
    return wish(**{name: session[name] for name in KEY} | fields)


class Client:
    def __init__(self, address: str, prefix: str = "") -> None:
        self.http = httpx.Client(base_url=address, timeout=TIMEOUT_SECONDS, verify=False)
        self._sessions = f"{prefix}/sessions"

    def put(self, body: Json) -> httpx.Response:
        return self.http.put(self._sessions, json=body)

    def put_raw(self, content: bytes | Iterator[bytes], **headers: str) -> httpx.Response:
        """Header names with underscores for dashes."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.http.put(self._sessions, content=content, headers=JSON | named)

    def open(self, **fields: Any) -> Json:
        """A session that must come about."""
        answer = self.put(wish(**fields))
        assert answer.status_code in (200, 201), answer.text
        return answer.json()  # type: ignore[no-any-return]

    def get(self, session_id: str) -> httpx.Response:
        return self.http.get(f"{self._sessions}/{session_id}")

    def end(self, session_id: str) -> httpx.Response:
        return self.http.delete(f"{self._sessions}/{session_id}")

    def list(self, **query: Any) -> httpx.Response:
        return self.http.get(self._sessions, params=query)

    def ids(self, **query: Any) -> Sequence[str]:
        """Which sessions a list shows, in its order."""
        return ids_of(self.list(**query))


def ids_of(answer: httpx.Response) -> Sequence[str]:
    assert answer.status_code == 200, answer.text
    return [session["sessionId"] for session in answer.json()["sessions"]]


class RawAnswer(msgspec.Struct):
    """One answer as it came over the wire."""

    status: int = 0
    headers: dict[str, str] = {}
    body: bytes = b""
    complete: bool = False

    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Connection:
    """A socket that sends exactly what it is told and reads whole answers, in the order in which they come."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers: list[RawAnswer] = []
        self._parser = httptools.HttpResponseParser(self)

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._socket.sendall(piece)

    def read(self) -> RawAnswer:
        """The next final answer: an interim `100 Continue` is skipped."""
        answer = self._next()
        return self.read() if answer.status == 100 else answer

    def read_interim(self) -> int:
        return self._next().status

    def _next(self) -> RawAnswer:
        while not (self._answers and self._answers[0].complete):
            data = self._socket.recv(65536)
            assert data, f"closed instead of answering; so far: {self._answers}"
            self._parser.feed_data(data)
        return self._answers.pop(0)

    def is_closed_by_peer(self) -> bool:
        """Waits for the end of the connection; what still comes before it is an answer too many."""
        data = self._socket.recv(65536)
        assert not data, f"expected the end of the connection, got {data!r}"
        return True

    def close(self) -> None:
        self._socket.close()

    # What the parser calls.

    def on_message_begin(self) -> None:
        self._answers.append(RawAnswer(headers={}))

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
    """The bytes of a request, as plain as the hot lane wants it unless told otherwise."""
    content = body if isinstance(body, bytes) else msgspec.json.encode(body)
    lines = [f"{method} {path} HTTP/{version}", "Host: tenure"]
    if media_type is not None:
        lines.append(f"Content-Type: {media_type}")
    if not any(header.lower().startswith("transfer-encoding") for header in headers):
        lines.append(f"Content-Length: {len(content) if length is None else length}")
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))
