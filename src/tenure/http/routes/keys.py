"""The API key routes: create, list and revoke keys. Only the answer to a creation contains the key itself."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from tenure.access.grants import OPERATORS, READERS
from tenure.domain.keys import KEY_NAME_MAX, CreateKeyOutcome, NewKey, Role, StoredKey, is_public_id, new_api_key
from tenure.errors import FieldError, Invalid, KeyNameTaken, NotFound, TooLarge, Unavailable, UnsupportedMediaType
from tenure.http.answers import JSON, Answer
from tenure.http.fields import Cursor, GivenInstant, Instant, PageLimit, Uuid, in_utc, instant
from tenure.http.pages import cursor_of_text, forged, page, text_of
from tenure.http.pipeline import Call, Route
from tenure.store.contract import Store

KeyName = Annotated[
    str,
    Meta(
        pattern="^[!-~]([ -~]*[!-~])?$",
        max_length=KEY_NAME_MAX,
        extra={"must": f"must be printable ASCII without blanks at its ends, at most {KEY_NAME_MAX} characters"},
    ),
]
KeyRole = Annotated[Role, Meta(extra={"must": f"must be {', '.join(Role)}"})]
NO_STORE = (b"cache-control", b"no-store")


class KeyQuery(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: KeyName | None = None
    limit: PageLimit = 100
    cursor: Cursor | None = None


class KeyBody(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: KeyName
    role: KeyRole
    tenant_object_id: Uuid | None = None
    expires_at: GivenInstant | None = None
    others_expire_at: GivenInstant | None = None
    """Other live keys with this name expire at this instant, or earlier if they already expire earlier."""


class KeyAnswer(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    public_id: str
    name: str
    role: Role
    tenant_object_id: Uuid | None
    created_at: Instant
    created_by: str
    expires_at: Instant | None
    last_used_at: Instant | None
    revoked_at: Instant | None


class CreatedKeyAnswer(KeyAnswer, frozen=True, rename="camel", kw_only=True):
    key: str
    """The key itself. It is not stored, and no other answer contains it."""

    def __repr__(self) -> str:
        return f"CreatedKeyAnswer({self.public_id}, …)"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("public_id", self.public_id)]


class KeyList(msgspec.Struct, frozen=True, rename="camel"):
    keys: list[KeyAnswer]
    count: int
    next_cursor: str | None


class KeyRoutes:
    def __init__(self, store: Store, prefix: str, reread_keys: Callable[[], Awaitable[None]]) -> None:
        """`reread_keys` makes this worker use the current keys at once. Other workers follow within two seconds."""
        self._store = store
        self._path = f"{prefix}/keys"
        self._reread_keys = reread_keys

    def routes(self) -> Sequence[Route]:
        return [
            Route(
                method="POST",
                path="/keys",
                handler=self.create,
                grants=OPERATORS,
                tag="keys",
                summary="Create an API key",
                description=(
                    "The response contains the key, which cannot be read again later. A name may have two live keys, "
                    "so that a key can be replaced while it is in use."
                ),
                body=KeyBody,
                answers={201: CreatedKeyAnswer},
                refusals=(Invalid, KeyNameTaken, TooLarge, UnsupportedMediaType, Unavailable),
            ),
            Route(
                method="GET",
                path="/keys",
                handler=self.list,
                grants=READERS,
                tag="keys",
                summary="List API keys",
                description="Includes keys that are revoked or have expired.",
                query=KeyQuery,
                answers={200: KeyList},
                refusals=(Invalid, Unavailable),
            ),
            Route(
                method="DELETE",
                path="/keys/{publicId}",
                handler=self.revoke,
                grants=OPERATORS,
                tag="keys",
                summary="Revoke an API key",
                description="Every instance refuses the key within two seconds. Revoking a key twice changes nothing.",
                answers={200: KeyAnswer},
                refusals=(Invalid, NotFound, Unavailable),
            ),
        ]

    async def create(self, call: Call) -> Answer:
        body: KeyBody = call.body
        await self._check_future(body)
        key = new_api_key(body.role)
        new = NewKey(
            public_id=key.public_id,
            name=body.name,
            role=key.role,
            digest=key.digest,
            tenant_object_id=body.tenant_object_id and body.tenant_object_id.lower(),
            expires_at=in_utc("expiresAt", body.expires_at),
            others_expire_at=in_utc("othersExpireAt", body.others_expire_at),
        )
        result = await self._store.create_key(new, call.actor)
        if result.outcome is CreateKeyOutcome.NAME_TAKEN or result.key is None:
            raise KeyNameTaken(f"two live API keys have the name {body.name}; revoke one of them first")
        # Read the keys before the response: once the first key exists, this instance must refuse anonymous requests.
        await self._reread_keys()
        answer = CreatedKeyAnswer(key=key.text, **msgspec.structs.asdict(key_answer(result.key)))
        return Answer(answer, 201, [*JSON, NO_STORE])

    async def list(self, call: Call) -> Answer:
        query: KeyQuery = call.query
        found = await self._store.list_keys(query.name, _public_id_of(query.cursor), query.limit + 1)
        return page(found, query, self._path, lambda key: cursor_of_text(key.public_id), _listed)

    async def revoke(self, call: Call) -> Answer:
        public_id = call.path["publicId"]
        key = await self._store.revoke_key(public_id, call.actor) if is_public_id(public_id) else None
        if key is None:
            raise NotFound(f"API key {public_id[:64]} does not exist")
        await self._reread_keys()
        return Answer(key_answer(key))

    async def _check_future(self, body: KeyBody) -> None:
        """Raises `Invalid` if a given instant has passed by the database's clock."""
        given = {"expiresAt": body.expires_at, "othersExpireAt": body.others_expire_at}
        instants = {field: value for field, value in given.items() if value is not None}
        if instants:
            now = (await self._store.read_keys_version()).now
            errors = [FieldError(field, "must be in the future") for field, value in instants.items() if value <= now]
            if errors:
                raise Invalid(*errors)


def key_answer(key: StoredKey) -> KeyAnswer:
    return KeyAnswer(
        public_id=key.public_id,
        name=key.name,
        role=Role(key.role),
        tenant_object_id=key.tenant_object_id,
        created_at=instant(key.created_at),
        created_by=key.created_by,
        expires_at=key.expires_at and instant(key.expires_at),
        last_used_at=key.last_used_at and instant(key.last_used_at),
        revoked_at=key.revoked_at and instant(key.revoked_at),
    )


def _listed(keys: Sequence[StoredKey], count: int, cursor: str | None) -> KeyList:
    return KeyList([key_answer(key) for key in keys], count, cursor)


def _public_id_of(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    public_id = text_of(cursor)
    if not is_public_id(public_id):
        raise forged()
    return public_id
