"""The text of session tokens, and their signatures."""

import re

from rich.pretty import pretty_repr

from tenure.domain.session_tokens import SigningKey, new_signing_key, parse_session_token, session_token
from tests.support.open_requests import some_id

KEY = new_signing_key()


def accepted(text: bytes, key: SigningKey = KEY) -> str | None:
    """Returns the session id; None if the token is malformed, does not name `key`, or is not signed with `key`."""
    token = parse_session_token(text)
    if token is None or token.key_id.hex() != key.key_id or not token.is_signed_with(key.secret):
        return None
    return token.session_id


def test_token_contains_session_id_and_only_letters_digits_dashes_and_underscores() -> None:
    for _ in range(50):
        session_id = some_id()
        text = session_token(KEY, session_id)
        assert re.fullmatch(r"tns_[0-9A-Za-z_-]{72}", text)
        assert accepted(text.encode()) == session_id


def test_token_with_any_character_changed_is_refused() -> None:
    text = session_token(KEY, some_id())
    for at in range(4, len(text)):
        for other in ("A", "_", chr(ord(text[at]) ^ 1)):
            changed = text[:at] + other + text[at + 1 :]
            assert changed == text or accepted(changed.encode()) is None, at


def test_token_of_another_key_is_refused() -> None:
    session_id = some_id()
    same_id = SigningKey(KEY.key_id, new_signing_key().secret)
    for other in (new_signing_key(), same_id):
        assert accepted(session_token(other, session_id).encode()) is None


def test_malformed_text_is_refused_before_signature_is_checked() -> None:
    text = session_token(KEY, some_id()).encode()
    for malformed in (
        *(b"", b"tns_", text[:-1], text + b"A", b" " + text, text + b"\n", text[4:], b"tnr_" + text[4:], text.upper()),
        *(text[:40] + odd + text[41:] for odd in (b"+", b"/", b"=", b".", b"\0", b"\xff")),
        *(text[:72] + b"====", b"tns_" + b"A" * 7200),
    ):
        assert parse_session_token(malformed) is None, malformed


def test_secret_and_signature_are_not_shown() -> None:
    text = session_token(KEY, some_id())
    token = parse_session_token(text.encode())
    assert token is not None
    shown = "".join(show(each) for show in (repr, str, pretty_repr) for each in (KEY, token, [KEY], {1: token}))
    for secret in (KEY.secret, token.mac):
        assert secret.hex() not in shown
        assert repr(secret)[2:12] not in shown
    assert text[36:] not in shown
