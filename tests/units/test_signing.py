"""Standard Webhooks: what a signature covers, and what a receiver refuses."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.signing import (
    ID,
    SIGNATURE,
    TIMESTAMP,
    TOLERANCE_SECONDS,
    WrongSignature,
    is_secret,
    key_of,
    sign,
    signed_headers,
    verify,
)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER_SECRET = "whsec_b2xkIHNlY3JldCBvZiB0aGUgcmVjZWl2ZXI="
MESSAGE_ID = "msg_p5jXN8AQM9LWM0D4loKWxJek"
NOW = 1614265330
BODY = b'{"test": 2432232314}'
SIGNED = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

secrets = st.binary(min_size=16, max_size=64).map(lambda key: "whsec_" + b64encode(key).decode())
message_ids = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="."), min_size=1)
timestamps = st.integers(0, 10**12 - 1)


def headers(*by: str) -> dict[str, str]:
    return signed_headers(by or [SECRET], MESSAGE_ID, NOW, BODY)


def test_signs_as_the_standard_says() -> None:
    assert sign(SECRET, MESSAGE_ID, NOW, BODY) == SIGNED


def test_takes_the_secret_without_its_prefix() -> None:
    assert sign(SECRET.removeprefix("whsec_"), MESSAGE_ID, NOW, BODY) == SIGNED


def test_verifies_the_known_answer() -> None:
    verify([SECRET], {ID: MESSAGE_ID, TIMESTAMP: str(NOW), SIGNATURE: SIGNED}, BODY, NOW)


@given(secrets, message_ids, timestamps, st.binary())
def test_verifies_what_it_signed(secret: str, message_id: str, timestamp: int, body: bytes) -> None:
    verify([secret], signed_headers([secret], message_id, timestamp, body), body, timestamp)


# Secrets


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "password"])
def test_refuses_a_secret_that_is_too_short(secret: str) -> None:
    assert not is_secret(secret)
    with pytest.raises(ValueError, match="at least 16 bytes"):
        key_of(secret)


@pytest.mark.parametrize(
    "secret",
    [
        "not base64 but long enough to be a secret",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLa-_",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n",
        "whsec_schlüsselschlüsselschlüssel",
    ],
)
def test_refuses_a_secret_that_is_not_base64(secret: str) -> None:
    assert not is_secret(secret)


@given(secrets)
def test_takes_any_other(secret: str) -> None:
    assert is_secret(secret)


# Ids


@pytest.mark.parametrize("message_id", ["", "a.b", "a b", "a\r\nx", "ä"])
def test_does_not_sign_an_ambiguous_id(message_id: str) -> None:
    with pytest.raises(ValueError, match="an id must be"):
        sign(SECRET, message_id, NOW, BODY)


def test_the_parts_of_a_signed_request_cannot_be_cut_elsewhere() -> None:
    """`a.1.2.x` is signed; as id `a.1`, timestamp 2 and body `x` it must not pass."""
    signature = sign(SECRET, "a", NOW, b"%d.x" % NOW)
    shifted = {ID: f"a.{NOW}", TIMESTAMP: str(NOW), SIGNATURE: signature}
    with pytest.raises(WrongSignature, match="without spaces and dots"):
        verify([SECRET], shifted, b"x", NOW)


# Tampering


@given(st.binary().filter(lambda body: body != BODY))
def test_refuses_another_body(body: bytes) -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([SECRET], headers(), body, NOW)


@given(message_ids.filter(lambda message_id: message_id != MESSAGE_ID))
def test_refuses_another_id(message_id: str) -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([SECRET], {**headers(), ID: message_id}, BODY, NOW)


def test_refuses_another_timestamp() -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([SECRET], {**headers(), TIMESTAMP: str(NOW + 1)}, BODY, NOW)


@given(secrets.filter(lambda secret: key_of(secret) != key_of(SECRET)))
def test_refuses_another_secret(secret: str) -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([secret], headers(), BODY, NOW)


@pytest.mark.parametrize(
    "signature",
    ["v1", "v1,", SIGNED[3:], SIGNED.lower(), SIGNED.replace("v1", "v2"), SIGNED[:-1], f"{SIGNED}=", "v1,\u00fc", ","],
)
def test_refuses_what_only_looks_like_the_signature(signature: str) -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([SECRET], {**headers(), SIGNATURE: signature}, BODY, NOW)


@pytest.mark.parametrize("name", [ID, TIMESTAMP, SIGNATURE])
@pytest.mark.parametrize("value", [None, ""])
def test_says_which_header_is_missing(name: str, value: str | None) -> None:
    given_headers = {each: text for each, text in {**headers(), name: value}.items() if text is not None}
    with pytest.raises(WrongSignature, match=f"^{name} is missing$"):
        verify([SECRET], given_headers, BODY, NOW)


# Time


@pytest.mark.parametrize("seconds", [-TOLERANCE_SECONDS, 0, TOLERANCE_SECONDS])
def test_accepts_a_timestamp_within_the_tolerance(seconds: int) -> None:
    verify([SECRET], headers(), BODY, NOW + seconds)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (TOLERANCE_SECONDS + 1, "too old: 301 s, allowed are 300 s"),
        (-TOLERANCE_SECONDS - 1, "too far in the future: 301 s, allowed are 300 s"),
    ],
)
def test_refuses_a_timestamp_out_of_tolerance(seconds: int, words: str) -> None:
    with pytest.raises(WrongSignature, match=words):
        verify([SECRET], headers(), BODY, NOW + seconds)


@pytest.mark.parametrize("timestamp", ["now", "-1", "1.5", "1_614", " 1614265330", "١٦١٤", "9" * 13])
def test_refuses_a_timestamp_that_is_not_whole_seconds(timestamp: str) -> None:
    with pytest.raises(WrongSignature, match="whole seconds since 1970"):
        verify([SECRET], {**headers(), TIMESTAMP: timestamp}, BODY, NOW)


# Rotation


def test_a_receiver_that_knows_only_the_previous_secret_accepts_while_both_sign() -> None:
    verify([OTHER_SECRET], headers(SECRET, OTHER_SECRET), BODY, NOW)


def test_a_receiver_that_knows_both_accepts_either() -> None:
    verify([SECRET, OTHER_SECRET], headers(OTHER_SECRET), BODY, NOW)
    verify([SECRET, OTHER_SECRET], headers(SECRET), BODY, NOW)


def test_the_signatures_of_both_secrets_stand_in_one_header() -> None:
    assert headers(SECRET, OTHER_SECRET)[SIGNATURE] == f"{SIGNED} {sign(OTHER_SECRET, MESSAGE_ID, NOW, BODY)}"


def test_passes_over_signatures_of_other_versions() -> None:
    verify([SECRET], {**headers(), SIGNATURE: f"v1a,AAAA {SIGNED} v9,BBBB"}, BODY, NOW)


def test_nobody_is_trusted_without_a_secret() -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([], headers(), BODY, NOW)
