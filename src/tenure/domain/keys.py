"""API keys: their text, their roles, and when they are live.

The text of a key is `tnr_<role>_<public id>_<secret><checksum>`.

- The public id (12 characters) names the key in the database, in lists and in the audit log.
- The secret (32 characters, 190 random bits) is never stored. The database has its SHA-256. A plain hash is enough:
  190 random bits cannot be guessed by trial, so a slow password hash would protect no better.
- The checksum (CRC-32 of everything before it) recognises a mistyped or truncated key without a look-up. It also lets
  scanners for leaked credentials find keys with few false alarms. It is no protection against forged keys.

The random parts and the checksum consist of the digits and letters of base 62, so shells and editors treat a key as one
word.
"""

import hashlib
import re
import secrets
import string
import zlib
from datetime import datetime
from enum import StrEnum

import msgspec

from tenure.clock import instant_text
from tenure.domain.session_tokens import SigningKey

KEY_PREFIX = "tnr"
BASE62 = string.digits + string.ascii_uppercase + string.ascii_lowercase
PUBLIC_ID_LENGTH = 12
SECRET_LENGTH = 32
CHECKSUM_LENGTH = 6
KEY_NAME_MAX = 64
LIVE_KEYS_PER_NAME = 2
"""One key in use, and its successor during a rotation."""


class Role(StrEnum):
    CLIENT = "client"
    READER = "reader"
    OPERATOR = "operator"


class ApiKey(msgspec.Struct, frozen=True):
    """The parts of a key's text. Only this class holds the secret; `NewKey` and `StoredKey` hold its digest. The `repr`
    does not show the secret.
    """

    role: Role
    public_id: str
    secret: str

    def __repr__(self) -> str:
        return f"ApiKey({self.role.value}, {self.public_id}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("role", self.role.value), ("public_id", self.public_id)]

    @property
    def text(self) -> str:
        before = f"{KEY_PREFIX}_{self.role.value}_{self.public_id}_{self.secret}"
        return before + _checksum(before)

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the secret, as the database stores it."""
        return hashlib.sha256(self.secret.encode()).digest()


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key to create. The caller of the store chooses the public id, so that a repeated call finds the row that the
    first call inserted.
    """

    public_id: str
    name: str
    role: Role
    digest: bytes
    tenant_object_id: str | None = None
    expires_at: datetime | None = None
    others_expire_at: datetime | None = None
    """For a rotation: the other live keys with this name expire at this instant, unless they expire earlier."""


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    public_id: str
    name: str
    role: str
    tenant_object_id: str | None
    digest: bytes
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None

    def is_live(self, now: datetime) -> bool:
        """Whether the key is valid at `now`, by the database's clock. At `expires_at` it has expired."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > now)


class KeysVersion(msgspec.Struct, frozen=True):
    """The number of changes of the API keys so far, the database's clock, and the signing keys of session tokens.

    From version 1 on, callers need a credential. A rotation of the signing keys does not change the version: otherwise,
    after a rotation, callers would need a credential even if no API key had ever been created.
    """

    version: int
    now: datetime
    signing_keys: tuple[SigningKey, ...] = ()
    """In no particular order, including those that have expired since the last rotation."""


class CreateKeyOutcome(StrEnum):
    CREATED = "created"
    """This call created the key, or an earlier call with the same arguments did, and its answer was lost."""
    NAME_TAKEN = "name-taken"
    """There are LIVE_KEYS_PER_NAME live keys with this name."""


class CreateKeyResult(msgspec.Struct, frozen=True):
    outcome: CreateKeyOutcome
    key: StoredKey | None = None


def new_api_key(role: Role) -> ApiKey:
    return ApiKey(role, _random(PUBLIC_ID_LENGTH), _random(SECRET_LENGTH))


def parse_key(text: str) -> ApiKey | None:
    """Return the parts of a key, or None if the text has another form or a wrong checksum."""
    found = _KEY(text)
    if found is None or _checksum(text[:-CHECKSUM_LENGTH]) != text[-CHECKSUM_LENGTH:]:
        return None
    return ApiKey(Role(found["role"]), found["public_id"], found["secret"])


def creation_detail(new: NewKey) -> str:
    """Return the detail of the audit entry about the new key."""
    detail = f"{new.role.value} {new.name}"
    if new.tenant_object_id is not None:
        detail = f"{detail}, tenant {new.tenant_object_id}"
    if new.others_expire_at is None:
        return detail
    return f"{detail}; other keys with this name expire at {instant_text(new.others_expire_at)}"


def is_public_id(text: str) -> bool:
    return _PUBLIC_ID(text) is not None


def is_key_name(text: str) -> bool:
    """Names have 1 to KEY_NAME_MAX characters of printable ASCII, and no blank at either end."""
    return 0 < len(text) <= KEY_NAME_MAX and text.isascii() and text.isprintable() and text == text.strip()


_PUBLIC_ID = re.compile(rf"[0-9A-Za-z]{{{PUBLIC_ID_LENGTH}}}").fullmatch
_KEY = re.compile(
    rf"{KEY_PREFIX}_(?P<role>{'|'.join(Role)})_(?P<public_id>[0-9A-Za-z]{{{PUBLIC_ID_LENGTH}}})"
    rf"_(?P<secret>[0-9A-Za-z]{{{SECRET_LENGTH}}})[0-9A-Za-z]{{{CHECKSUM_LENGTH}}}"
).fullmatch


def _random(length: int) -> str:
    return "".join(secrets.choice(BASE62) for _ in range(length))


def _checksum(text: str) -> str:
    """Return the CRC-32 in base 62, with leading zeros. CHECKSUM_LENGTH digits suffice: 62^6 is more than 2^32."""
    number = zlib.crc32(text.encode())
    digits = []
    for _ in range(CHECKSUM_LENGTH):
        number, digit = divmod(number, len(BASE62))
        digits.append(BASE62[digit])
    return "".join(reversed(digits))
