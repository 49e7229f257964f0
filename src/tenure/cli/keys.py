"""`tenure keys`: creates, lists, revokes and rotates API keys, and rotates the key that signs session tokens.

The commands work directly in the database and need no running service, so that the first key can be created. A key is
printed once, alone, to standard output. None of these commands takes a key as an argument, because other users of the
host can read the arguments of a process.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tenure.cli.exits import fail
from tenure.cli.flags import (
    ConfigFlag,
    DatabaseFlag,
    JsonFlag,
    instant_of,
    load_settings,
    local_actor,
    new_group,
    run_with_store,
)
from tenure.cli.output import Cell, Column, Value, id_cell, note, print_json, print_table, time_cell
from tenure.clock import instant_text
from tenure.domain.keys import (
    KEY_NAME_MAX,
    CreateKeyOutcome,
    NewKey,
    Role,
    StoredKey,
    is_key_name,
    is_public_id,
    new_api_key,
)
from tenure.domain.session_tokens import SIGNING_KEYS_MAX, RotateOutcome, new_signing_key
from tenure.errors import ConfigurationError
from tenure.ids import canonical_id

if TYPE_CHECKING:
    from tenure.store.contract import Store

PAGE = 500
LONGER_OVERLAP = timedelta(hours=1)
"""By default, the old signing key stays valid for the term of a session plus this time, because instances still sign
tokens with the old key for up to two seconds after a rotation."""
UNITS = {"d": "days", "h": "hours", "m": "minutes"}

keys = new_group("Create, list, revoke and rotate API keys, and rotate the key that signs session tokens.")

NameFlag = Annotated[str, typer.Option(help="The name of the key; two live keys may share it.", metavar="NAME")]
RoleFlag = Annotated[str, typer.Option(help="client, reader or operator.", metavar="ROLE")]
TenantFlag = Annotated[
    str | None,
    typer.Option(help="The only tenant whose data callers with the key can see.  [all tenants]", metavar="UUID"),
]
ExpiresFlag = Annotated[
    str | None,
    typer.Option(
        help="When the key expires: a duration such as 90d, 24h or 30m, an instant or a day.  [never]", metavar="TIME"
    ),
]
OverlapFlag = Annotated[
    str | None,
    typer.Option(
        help="Let the other keys with this name expire after this time, such as 24h.  [they stay valid]",
        metavar="DURATION",
    ),
]


@keys.command()
def create(
    name: NameFlag,
    role: RoleFlag,
    tenant: TenantFlag = None,
    expires: ExpiresFlag = None,
    database: DatabaseFlag = None,
    config: ConfigFlag = None,
) -> None:
    """Create a key and print it. It cannot be printed again.

    The command works directly in the database, without a running service, and migrates the schema if necessary. It
    prints the key alone to standard output, and everything else to standard error. At most two live keys have the same
    name. See docs/securing.md.

    tenure keys create --name web --role client --expires 90d
    """
    if not is_key_name(name):
        raise ConfigurationError(f"name: must be printable ASCII, at most {KEY_NAME_MAX} characters")
    key_role = _role_of(role)
    tenant_id = None if tenant is None else _tenant_of(tenant)

    async def run(store: "Store") -> str:
        await store.migrate()
        now = (await store.read_keys_version()).now
        return await _create(store, name, key_role, tenant_id, _instant_after(now, "expires", expires), None)

    typer.echo(run_with_store(load_settings(config, database=database), run, must_exist=False))


@keys.command(name="list")
def list_keys(
    name: Annotated[str | None, typer.Option(help="Only keys with this name.", metavar="NAME")] = None,
    as_json: JsonFlag = False,
    database: DatabaseFlag = None,
    config: ConfigFlag = None,
) -> None:
    """List all keys, including revoked and expired ones. No secret is shown.

    tenure keys list
    """

    async def run(store: "Store") -> tuple[Sequence[StoredKey], datetime]:
        return await _all_keys(store, name), (await store.read_keys_version()).now

    found, at = run_with_store(load_settings(config, database=database), run)
    if as_json:
        print_json({"keys": [_json_values(key, at) for key in found], "count": len(found)})
        return
    columns = (
        Column("public id"),
        Column("name"),
        Column("role"),
        Column("state"),
        Column("tenant", 1),
        Column("created", 4),
        Column("expires", 2),
        Column("last used", 3),
    )
    print_table(columns, [_row(key, at) for key in found], "no keys; create one with `tenure keys create`")


@keys.command()
def revoke(
    public_id: Annotated[
        str, typer.Argument(help="The public id of the key, as `list` prints it.", metavar="PUBLIC_ID")
    ],
    database: DatabaseFlag = None,
    config: ConfigFlag = None,
) -> None:
    """Revoke a key. Every instance that can reach the database refuses the key within two seconds.

    tenure keys revoke 4fJ0aQz81LmN
    """
    if not is_public_id(public_id):
        # The message does not contain the argument, because it may be a whole key.
        raise ConfigurationError("public_id: must have 12 letters and digits, as `tenure keys list` prints it")
    settings = load_settings(config, database=database)
    key = run_with_store(settings, lambda store: store.revoke_key(public_id, local_actor()))
    if key is None or key.revoked_at is None:
        fail(f"key {public_id} does not exist")
    else:
        note(f"revoked {public_id} ({key.name}) at {instant_text(key.revoked_at)}")


@keys.command()
def rotate(
    name: Annotated[str, typer.Argument(help="The name of the key to replace.", metavar="NAME")],
    overlap: OverlapFlag = None,
    expires: ExpiresFlag = None,
    database: DatabaseFlag = None,
    config: ConfigFlag = None,
) -> None:
    """Create a second key with the name, role and tenant of an existing one, and print it.

    The new key gets the role and tenant of the newest live key with this name. Without `--overlap` the other keys with
    this name stay valid until they are revoked or expire.

    tenure keys rotate web --overlap 24h
    """

    async def run(store: "Store") -> str:
        now = (await store.read_keys_version()).now
        live = [key for key in await _all_keys(store, name) if key.is_live(now)]
        if not live:
            fail(f"there is no live key with the name {name}")
        newest = max(live, key=lambda key: key.created_at)
        others_expire_at = None if overlap is None else now + _duration_of("overlap", overlap)
        expires_at = _instant_after(now, "expires", expires)
        return await _create(store, name, Role(newest.role), newest.tenant_object_id, expires_at, others_expire_at)

    typer.echo(run_with_store(load_settings(config, database=database), run))


@keys.command()
def rotate_signing_key(
    overlap: Annotated[
        str | None,
        typer.Option(
            help="How long tokens of the old key stay valid, such as 30d; by default, the sessions' term plus an hour.",
            metavar="DURATION",
        ),
    ] = None,
    at_once: Annotated[
        bool, typer.Option("--at-once", help="Make all earlier session tokens invalid within two seconds.")
    ] = False,
    database: DatabaseFlag = None,
    config: ConfigFlag = None,
) -> None:
    """Replace the key that signs session tokens. The key is never printed.

    Tokens that were issued before stay valid for the time in `--overlap`. With `--at-once` they become invalid within
    two seconds on every instance that can reach the database. At most 16 signing keys are valid at a time. See
    docs/securing.md#browsers-and-devices.

    tenure keys rotate-signing-key --at-once
    """
    if at_once and overlap is not None:
        raise ConfigurationError("overlap: cannot be combined with --at-once")
    settings = load_settings(config, database=database)
    longest = timedelta(days=settings.sessions.term_days) + LONGER_OVERLAP
    valid_for = None if at_once else longest if overlap is None else _duration_of("overlap", overlap)
    new = new_signing_key()
    outcome = run_with_store(settings, lambda store: store.rotate_signing_key(new, valid_for, local_actor()))
    if outcome is RotateOutcome.TOO_MANY:
        fail(f"{SIGNING_KEYS_MAX} signing keys are still valid; wait until one has expired, or use --at-once")
    earlier = "invalid" if valid_for is None else f"valid for {_duration_text(valid_for)}"
    note(f"new session tokens are signed with key {new.key_id}; earlier tokens are {earlier}")


async def _create(
    store: "Store",
    name: str,
    role: Role,
    tenant_object_id: str | None,
    expires_at: datetime | None,
    others_expire_at: datetime | None,
) -> str:
    """Create the key, print a note about it, and return the text of the key."""
    key = new_api_key(role)
    new = NewKey(
        public_id=key.public_id,
        name=name,
        role=role,
        digest=key.digest,
        tenant_object_id=tenant_object_id,
        expires_at=expires_at,
        others_expire_at=others_expire_at,
    )
    if (await store.create_key(new, local_actor())).outcome is CreateKeyOutcome.NAME_TAKEN:
        fail(f"two live keys have the name {name}; revoke one of them first: tenure keys list, tenure keys revoke")
    note(f"created {key.public_id} ({name}, {role.value}); the key is not stored and not shown again")
    return key.text


async def _all_keys(store: "Store", name: str | None) -> Sequence[StoredKey]:
    """Return all keys, or those with this name, sorted by name and time of creation."""
    found = list(await store.list_keys(name, None, PAGE))
    while found and len(found) % PAGE == 0:
        page = await store.list_keys(name, found[-1].public_id, PAGE)
        if not page:
            break
        found += page
    return sorted(found, key=lambda key: (key.name, key.created_at))


def _tenant_of(text: str) -> str:
    tenant = canonical_id(text)
    if tenant is None:
        raise ConfigurationError("tenant: must be a UUID")
    return tenant


def _role_of(text: str) -> Role:
    try:
        return Role(text)
    except ValueError:
        raise ConfigurationError(f"role: must be {', '.join(Role)}") from None


def _instant_after(now: datetime, flag: str, text: str | None) -> datetime | None:
    """Parse an instant, or a duration, which is counted from `now`, the database's time."""
    if text is None:
        return None
    if _DURATION(text):
        return now + _duration_of(flag, text)
    instant = instant_of(flag, text).astimezone(UTC)
    if instant <= now:
        raise ConfigurationError(f"{flag}: must be in the future")
    return instant


_DURATION = re.compile(r"([1-9][0-9]{0,4})([dhm])").fullmatch


def _duration_of(flag: str, text: str) -> timedelta:
    found = _DURATION(text)
    if found is None:
        raise ConfigurationError(f"{flag}: must be a number of days, hours or minutes, such as 90d, 24h or 30m")
    return timedelta(**{UNITS[found[2]]: int(found[1])})


def _duration_text(duration: timedelta) -> str:
    hours = duration.total_seconds() / 3600
    return f"{hours / 24:g} d" if hours % 24 == 0 else f"{hours:g} h"


def _state(key: StoredKey, now: datetime) -> str:
    if key.revoked_at is not None:
        return "revoked"
    return "live" if key.is_live(now) else "expired"


def _row(key: StoredKey, at: datetime) -> list[Value]:
    state = _state(key, at)
    return [
        key.public_id,
        key.name,
        key.role,
        Cell(state, style="good" if state == "live" else "dim"),
        id_cell(key.tenant_object_id),
        time_cell(key.created_at, at),
        time_cell(key.expires_at, at),
        time_cell(key.last_used_at, at),
    ]


def _json_values(key: StoredKey, now: datetime) -> Mapping[str, object]:
    instants = {
        "createdAt": key.created_at,
        "expiresAt": key.expires_at,
        "lastUsedAt": key.last_used_at,
        "revokedAt": key.revoked_at,
    }
    return {
        "publicId": key.public_id,
        "name": key.name,
        "role": key.role,
        "state": _state(key, now),
        "tenantObjectId": key.tenant_object_id,
        "createdBy": key.created_by,
        **{name: None if value is None else instant_text(value) for name, value in instants.items()},
    }
