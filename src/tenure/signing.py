"""Standard Webhooks signatures, version 1: HMAC-SHA256 over `id.timestamp.body`, in base64.

A secret is `whsec_` and base64, or the base64 alone, as the libraries of Standard Webhooks take it. Plain text is
refused: much of it is base64 by accident, and two sides that guess differently never agree.
"""

import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping

from tenure.errors import TenureError

ID = "webhook-id"
TIMESTAMP = "webhook-timestamp"
SIGNATURE = "webhook-signature"

PREFIX = "whsec_"
KEY_MIN_BYTES = 16
SECRET_WORDS = f"{PREFIX} and base64 (A-Z a-z 0-9 + / and = at the end) of at least {KEY_MIN_BYTES} bytes"
"""What a secret must be."""
TOLERANCE_SECONDS = 300
"""How far a request's timestamp may be from the receiver's clock, either way."""

_ID = re.compile(r"[!-~]+")
_SECONDS = re.compile(r"[0-9]{1,12}")


class WrongSignature(TenureError):
    """The request is not from somebody who knows the secret, or it is too old. The message says which."""


def key_of(secret: str) -> bytes:
    """The bytes to sign with. Raises `ValueError` if it is no secret."""
    key = b64decode(secret.removeprefix(PREFIX), validate=True)
    if len(key) < KEY_MIN_BYTES:
        raise ValueError(f"a secret must have at least {KEY_MIN_BYTES} bytes")
    return key


def is_secret(text: str) -> bool:
    try:
        return bool(key_of(text))
    except ValueError:
        return False


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    if not _is_unambiguous(message_id):
        raise ValueError(f"an id must be printable ASCII without spaces and dots: {message_id!r}")
    return _signature(key_of(secret), message_id, str(timestamp), body)


def signed_headers(secrets: Iterable[str], message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers of a request, with a signature by each secret: the current one and, while it lasts, the previous."""
    return {
        ID: message_id,
        TIMESTAMP: str(timestamp),
        SIGNATURE: " ".join(sign(secret, message_id, timestamp, body) for secret in secrets),
    }


def verify(
    secrets: Iterable[str],
    headers: Mapping[str, str],
    body: bytes,
    now: float,
    tolerance: float = TOLERANCE_SECONDS,
) -> None:
    """Refuses what none of `secrets` has signed. Names of headers are in lower case, `now` is in seconds since 1970."""
    message_id, timestamp = _required(headers, ID), _required(headers, TIMESTAMP)
    offered = _required(headers, SIGNATURE).split()
    if not _is_unambiguous(message_id):
        raise WrongSignature(f"{ID} must be printable ASCII without spaces and dots")
    _refuse_wrong_time(timestamp, now, tolerance)
    expected = [_signature(key_of(secret), message_id, timestamp, body) for secret in secrets]
    if not _any_equal(expected, offered):
        raise WrongSignature(f"{SIGNATURE} has no v1 signature of this request by a secret known here")


def _required(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise WrongSignature(f"{name} is missing")
    return value


def _refuse_wrong_time(timestamp: str, now: float, tolerance: float) -> None:
    if not _SECONDS.fullmatch(timestamp):
        raise WrongSignature(f"{TIMESTAMP} must be whole seconds since 1970")
    age = now - int(timestamp)
    if age > tolerance:
        raise WrongSignature(f"{TIMESTAMP} is too old: {age:.0f} s, allowed are {tolerance:.0f} s")
    if age < -tolerance:
        raise WrongSignature(f"{TIMESTAMP} is too far in the future: {-age:.0f} s, allowed are {tolerance:.0f} s")


def _any_equal(expected: Iterable[str], offered: Iterable[str]) -> bool:
    """Compares all with all, so that the time taken tells nothing about which of them came close."""
    pairs = [(mine.encode(), theirs.encode()) for mine in expected for theirs in offered]
    return sum(hmac.compare_digest(*pair) for pair in pairs) > 0


def _is_unambiguous(message_id: str) -> bool:
    """With a dot in it, the same signature would also fit another id, timestamp and body."""
    return _ID.fullmatch(message_id) is not None and "." not in message_id


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + b64encode(hmac.digest(key, signed, "sha256")).decode()
