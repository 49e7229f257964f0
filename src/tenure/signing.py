"""Standard Webhooks signatures, version 1: HMAC-SHA256 over `id.timestamp.body`, in base64.

A secret is base64 with or without the prefix `whsec_`; the libraries of Standard Webhooks accept both. Text that is not
base64 is refused. If plain text were a secret too, a text that is also valid base64 would have two meanings, and sender
and receiver could derive different keys from it.
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
SECRET_RULE = f"{PREFIX} and base64 (A-Z a-z 0-9 + / and = at the end) of at least {KEY_MIN_BYTES} bytes"
"""The form of a secret. Completes "must be …" in messages and documentation."""
TOLERANCE_SECONDS = 300
"""The maximum difference between a request's timestamp and the receiver's clock, in either direction."""

_ID = re.compile(r"[!-~]+")
_SECONDS = re.compile(r"[0-9]{1,12}")


class WrongSignature(TenureError):
    """A header is missing or malformed, no signature matches, or the timestamp is out of tolerance. The message
    contains the reason.
    """


def key_of(secret: str) -> bytes:
    """Return the bytes to sign with; raise `ValueError` if the text is not a secret."""
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
    """Return the headers of a request, with one signature per secret. During a rotation there are two secrets."""
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
    """Accept a request that one of `secrets` signed at most `tolerance` seconds before or after `now`. For any other
    request, raise `WrongSignature`.

    Header names must be in lower case; `now` is in seconds since 1970.
    """
    message_id, timestamp = _required(headers, ID), _required(headers, TIMESTAMP)
    offered = _required(headers, SIGNATURE).split()
    if not _is_unambiguous(message_id):
        raise WrongSignature(f"{ID} must be printable ASCII without spaces and dots")
    _check_timestamp(timestamp, now, tolerance)
    expected = [_signature(key_of(secret), message_id, timestamp, body) for secret in secrets]
    if not _any_equal(expected, offered):
        raise WrongSignature(f"{SIGNATURE} has no v1 signature that matches a configured secret")


def _required(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise WrongSignature(f"{name} is missing")
    return value


def _check_timestamp(timestamp: str, now: float, tolerance: float) -> None:
    if not _SECONDS.fullmatch(timestamp):
        raise WrongSignature(f"{TIMESTAMP} must be whole seconds since 1970")
    age = now - int(timestamp)
    if age > tolerance:
        raise WrongSignature(f"{TIMESTAMP} is too old: {age:.0f} s, the limit is {tolerance:.0f} s")
    if age < -tolerance:
        raise WrongSignature(f"{TIMESTAMP} is too far in the future: {-age:.0f} s, the limit is {tolerance:.0f} s")


def _any_equal(expected: Iterable[str], offered: Iterable[str]) -> bool:
    """Compare every pair in constant time, so that timing reveals nothing about the expected signatures."""
    pairs = [(one.encode(), other.encode()) for one in expected for other in offered]
    return sum(hmac.compare_digest(*pair) for pair in pairs) > 0


def _is_unambiguous(message_id: str) -> bool:
    """Return whether the id is printable and has no dot.

    With a dot, the same signature would also match another id, timestamp and body.
    """
    return _ID.fullmatch(message_id) is not None and "." not in message_id


def _signature(key: bytes, message_id: str, timestamp: str, body: bytes) -> str:
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + b64encode(hmac.digest(key, signed, "sha256")).decode()
