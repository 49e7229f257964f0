"""Session tokens: their text, and the keys that sign them.

A session token authorises one session, for a browser or device that must not hold an API key. Its text is `tns_`
followed by 72 characters of base64url (RFC 4648) that encode 54 bytes:

| bytes | content |
|---|---|
| 16 | the session id |
| 6 | the id of the signing key |
| 32 | HMAC-SHA-256 of a fixed prefix and the session id, with the secret of the signing key |

54 bytes need no padding, so every token has exactly one text. The characters are allowed in an HTTP header and in the
name of a WebSocket subprotocol. A token has no expiry time of its own. It is refused once its session has ended, or
once its signing key has expired or been deleted.

The signing keys belong to the installation and are stored in its database. The current key has no `expires_at` and
signs new tokens. A rotation either deletes the earlier keys, or lets them verify tokens until they expire.
"""

import binascii
import hmac
import re
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

TOKEN_PREFIX = "tns_"  # noqa: S105 - the beginning of every token
KEY_ID_BYTES = 6
SECRET_BYTES = 32
SIGNING_KEYS_MAX = 16
"""The most signing keys that verify tokens at the same time. Every instance reads all of them once a second."""

_CONTEXT = b"tenure session token\n"
"""Part of the signed text, so that a signature made for another purpose is never a valid token."""
_SESSION_ID_BYTES = 16
_MAC_STARTS = _SESSION_ID_BYTES + KEY_ID_BYTES
_TOKEN = re.compile(rb"tns_[0-9A-Za-z_-]{72}").fullmatch
_FROM_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_TO_URL_SAFE = bytes.maketrans(b"+/", b"-_")


class SigningKey(msgspec.Struct, frozen=True):
    """A key that signs session tokens. Its `repr` does not show the secret."""

    key_id: str
    """Twelve hexadecimal digits."""
    secret: bytes
    expires_at: datetime | None = None
    """From this instant on, the key verifies no token. None for the current key."""

    def __repr__(self) -> str:
        return f"SigningKey({self.key_id}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("key_id", self.key_id), ("expires_at", self.expires_at)]


class SessionToken(msgspec.Struct, frozen=True):
    """The parts of a well-formed token whose MAC has not been verified yet. Its `repr` does not show the MAC."""

    session: bytes
    key_id: bytes
    mac: bytes

    def __repr__(self) -> str:
        return f"SessionToken({self.session_id}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("session_id", self.session_id)]

    @property
    def session_id(self) -> str:
        digits = self.session.hex()
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"

    def is_signed_with(self, secret: bytes) -> bool:
        return hmac.compare_digest(self.mac, _mac(secret, self.session))


class RotateOutcome(StrEnum):
    ROTATED = "rotated"
    """This call stored the new key, or an earlier try of this call had stored it, and the answer was lost."""
    TOO_MANY = "too-many"
    """There are SIGNING_KEYS_MAX keys that have not expired. Nothing was changed."""


def new_signing_key() -> SigningKey:
    return SigningKey(secrets.token_hex(KEY_ID_BYTES), secrets.token_bytes(SECRET_BYTES))


def session_token(key: SigningKey, session_id: str) -> str:
    """Return the text of the token for a session id in canonical form."""
    return signer_of(key)(session_id)


def signer_of(key: SigningKey) -> Callable[[str], str]:
    """Return a function that does the same as `session_token`, faster: the key is prepared once."""
    key_id = bytes.fromhex(key.key_id)
    begin = hmac.new(key.secret, _CONTEXT, "sha256").copy

    def sign(session_id: str) -> str:
        session = bytes.fromhex(session_id.replace("-", ""))
        mac = begin()
        mac.update(session)
        content = binascii.b2a_base64(session + key_id + mac.digest(), newline=False)
        return TOKEN_PREFIX + content.translate(_TO_URL_SAFE).decode("ascii")

    return sign


def parse_session_token(text: bytes) -> SessionToken | None:
    """Return the parts of a token, or None if the text has another form."""
    if _TOKEN(text) is None:
        return None
    content = binascii.a2b_base64(text[len(TOKEN_PREFIX) :].translate(_FROM_URL_SAFE))
    return SessionToken(content[:_SESSION_ID_BYTES], content[_SESSION_ID_BYTES:_MAC_STARTS], content[_MAC_STARTS:])


def rotation_detail(overlap: timedelta | None) -> str:
    """Return the detail of the audit entry about a rotation. Without an overlap, the earlier keys are deleted."""
    if overlap is None:
        return "all earlier session tokens are invalid"
    return f"earlier signing keys expire after {overlap.total_seconds():g} seconds"


def _mac(secret: bytes, session: bytes) -> bytes:
    return hmac.digest(secret, _CONTEXT + session, "sha256")
