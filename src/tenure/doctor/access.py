"""Checks of API keys: none exists, or one is unused, never expires or is about to expire."""

import shlex
from collections.abc import Sequence
from datetime import datetime, timedelta

from tenure.config import is_loopback
from tenure.doctor.findings import Code, Finding, broken, warning
from tenure.doctor.patient import Patient
from tenure.domain.keys import StoredKey

UNUSED = timedelta(days=90)
EXPIRING = timedelta(days=14)
FIRST_KEY = "keys create --name admin --role operator --expires 90d"


async def check_first_key(patient: Patient) -> Sequence[Finding]:
    settings = patient.settings
    if is_loopback(settings.host) or settings.oidc is not None:
        return []
    version = await patient.store.read_keys_version()
    if version.version > 0:
        return []
    mend = patient.command(FIRST_KEY)
    if settings.insecure:
        seen = f"the service listens on {settings.host} with --insecure and without a key: every client has full access"
        return [warning(Code.NO_KEYS, seen, mend)]
    seen = f"the service does not start on {settings.host}: there is no API key and no OIDC issuer"
    return [broken(Code.NO_KEYS, seen, mend)]


async def check_keys(patient: Patient) -> Sequence[Finding]:
    now = await patient.now()
    live = [key for key in await patient.keys() if key.is_live(now)]
    findings = []
    for key in sorted(live, key=lambda key: (key.name, key.created_at)):
        rotate = patient.command(f"keys rotate {shlex.quote(key.name)} --overlap 24h --expires 90d")
        if now - (key.last_used_at or key.created_at) > UNUSED:
            last = "was never used" if key.last_used_at is None else f"was last used on {_day(key.last_used_at)}"
            revoke = patient.command(f"keys revoke {key.public_id}")
            findings.append(warning(Code.KEY_UNUSED, f"{_named(key)} {last}", revoke, key.public_id))
        elif key.expires_at is None:
            seen = f"{_named(key)} never expires"
            findings.append(warning(Code.KEY_WITHOUT_EXPIRY, seen, rotate, key.public_id))
        elif key.expires_at - now < EXPIRING and not _has_successor(key, live):
            seen = f"{_named(key)} expires on {_day(key.expires_at)}, and no key with its name expires later"
            findings.append(warning(Code.KEY_EXPIRING, seen, rotate, key.public_id))
    return findings


def _has_successor(key: StoredKey, live: Sequence[StoredKey]) -> bool:
    assert key.expires_at is not None  # noqa: S101 - the caller has checked it
    same = [other for other in live if other.name == key.name and other.public_id != key.public_id]
    return any(other.expires_at is None or other.expires_at > key.expires_at for other in same)


def _named(key: StoredKey) -> str:
    return f"key {key.public_id} ({key.name}, {key.role})"


def _day(instant: datetime) -> str:
    return instant.strftime("%Y-%m-%d")
