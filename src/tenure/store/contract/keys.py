"""API keys, the keys that sign session tokens, and the audit log."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from tenure.domain.audit_log import Actor, AuditEntry, AuditFilter, AuditPosition
from tenure.domain.keys import CreateKeyResult, KeysVersion, NewKey, StoredKey
from tenure.domain.session_tokens import RotateOutcome, SigningKey


class KeyStore(Protocol):
    """A method that creates or revokes an API key first locks the row of the installation (on SQLite, the file). So
    these changes happen one after the other. Each change increases the version of the keys by one and writes one audit
    entry; a repeated call does neither.
    """

    async def create_key(self, new: NewKey, actor: Actor) -> CreateKeyResult:
        """Creates the key, unless there are already LIVE_KEYS_PER_NAME live keys with its name. If `new` has
        `others_expire_at`, the other live keys with this name expire at that instant, unless they expire earlier.
        Raises `IdTaken` if another key has the public id of `new`.
        """

    async def revoke_key(self, public_id: str, actor: Actor) -> StoredKey | None:
        """Returns the revoked key, or None if it does not exist. A key that was revoked earlier does not change."""

    async def list_keys(self, name: str | None, after: str | None, limit: int) -> Sequence[StoredKey]:
        """Lists keys by public id, starting after the public id `after`. Includes revoked and expired keys."""

    async def find_key(self, public_id: str) -> StoredKey | None: ...

    async def read_keys_version(self) -> KeysVersion:
        """Returns the version of the keys, the time of the database and all signing keys, read with one statement."""

    async def rotate_signing_key(self, new: SigningKey, overlap: timedelta | None, actor: Actor) -> RotateOutcome:
        """Makes `new` the key that signs session tokens, and writes an audit entry.

        The earlier keys expire after `overlap`, unless they expire before that. If `overlap` is None, the earlier keys
        are deleted. Keys that have expired are deleted in any case. If a key with the id of `new` exists, an earlier
        call has added it, and this call changes nothing. With an overlap, returns TOO_MANY and changes nothing if there
        are already SIGNING_KEYS_MAX keys that have not expired. Takes the same lock as the other changes of keys, but
        does not increase the version.
        """

    async def touch_keys(self, used_at: Mapping[str, datetime]) -> None:
        """Records when keys were last used. `used_at` has at most BATCH_MAX keys, by public id. A recorded last use
        never becomes earlier, and is never later than the database's clock. A key that another transaction has locked
        may be skipped.
        """

    async def get_audit_entry(self, entry_id: str) -> AuditEntry | None: ...

    async def list_audit_log(
        self, criteria: AuditFilter, after: AuditPosition | None, limit: int
    ) -> Sequence[AuditEntry]:
        """Lists the newest entries first, starting after the position `after`."""
