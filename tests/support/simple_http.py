"""One HTTP request to an instance, and its response."""

from contextlib import closing
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

ANSWER_SECONDS = 10


class Response(NamedTuple):
    status: int
    body: Any


def send_request(address: str, path: str, method: str = "GET") -> Response:
    parts = urlsplit(address)
    with closing(HTTPConnection(str(parts.hostname), parts.port, timeout=ANSWER_SECONDS)) as connection:
        connection.request(method, path)
        result = connection.getresponse()
        return Response(result.status, msgspec.json.decode(result.read()))
