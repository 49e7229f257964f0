"""The text, the names and the public ids of API keys."""

import re
import string

import pytest
from hypothesis import given, strategies
from rich.pretty import pretty_repr

from tenure.domain.keys import BASE62, ApiKey, Role, is_key_name, is_public_id, new_api_key, parse_key

KEY = ApiKey(Role.CLIENT, "4fJ0aQz81LmN", "0123456789ABCDEFGHIJKLMNOPQRSTUV")
TEXT = KEY.text


def test_text_contains_role_public_id_secret_and_checksum() -> None:
    """The text is fixed: a changed checksum would invalidate all existing API keys."""
    assert "tnr_client_4fJ0aQz81LmN_0123456789ABCDEFGHIJKLMNOPQRSTUV" + TEXT[-6:] == TEXT
    assert TEXT[-6:] == "3cNP61"


def test_parse_key_returns_parts_of_every_role() -> None:
    for role in Role:
        key = new_api_key(role)
        assert parse_key(key.text) == key
        assert re.fullmatch(rf"tnr_{role.value}_[0-9A-Za-z]{{12}}_[0-9A-Za-z]{{38}}", key.text)


def test_new_keys_differ_in_public_id_and_secret() -> None:
    made = [new_api_key(Role.READER) for _ in range(100)]
    assert len({key.public_id for key in made}) == len({key.secret for key in made}) == 100


def test_secret_has_at_least_160_bits() -> None:
    assert len(set(BASE62)) ** len(KEY.secret) > 2**160


def test_parse_key_refuses_text_with_one_changed_character() -> None:
    for position, old in enumerate(TEXT):
        for new in {"0", "z", "_", " ", "é"} - {old}:
            assert parse_key(TEXT[:position] + new + TEXT[position + 1 :]) is None


@pytest.mark.parametrize(
    "text",
    ["", "tnr", TEXT[:-1], TEXT + "0", TEXT + "\n", " " + TEXT, TEXT.upper(), TEXT.replace("client", "admin")],
)
def test_parse_key_refuses_malformed_text(text: str) -> None:
    assert parse_key(text) is None


@given(strategies.text(string.printable + "é\0\ud800", max_size=80))
def test_parse_key_returns_none_for_arbitrary_text(text: str) -> None:
    assert parse_key(text) is None


def test_repr_hides_secret() -> None:
    for shown in (repr(KEY), str(KEY), f"{KEY}", pretty_repr(KEY), repr([KEY])):
        assert KEY.secret not in shown
        assert KEY.public_id in shown


def test_digest_is_sha256_of_secret() -> None:
    assert KEY.digest.hex().startswith("41ba696bc2822924")
    assert len(KEY.digest) == 32


@pytest.mark.parametrize("name", ["web", "W e b", "x" * 64, "~!"])
def test_printable_ascii_is_accepted_as_key_name(name: str) -> None:
    assert is_key_name(name)


@pytest.mark.parametrize("name", ["", "x" * 65, "wéb", "a\n", " web", "web "])
def test_invalid_key_name_is_refused(name: str) -> None:
    assert not is_key_name(name)


def test_public_ids_have_twelve_letters_and_digits() -> None:
    assert is_public_id("4fJ0aQz81LmN")
    assert not any(map(is_public_id, ["", "4fJ0aQz81Lm", "4fJ0aQz81LmN0", "4fJ0aQz81Lm_", "4fJ0aQz81Lm\n"]))
