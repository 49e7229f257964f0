"""One HTTP request to an instance, and its response."""

from contextlib import closing
from http.client import HTTPConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

ANSWER_SECONDS = 10


class Answered(NamedTuple):
    status: int
    body: Any


def ask(address: str, path: str, method: str = "GET") -> Answered:
    parts = urlsplit(address)
    with closing(HTTPConnection(str(parts.hostname), parts.port, timeout=ANSWER_SECONDS)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return Answered(answer.status, msgspec.json.decode(answer.read()))
