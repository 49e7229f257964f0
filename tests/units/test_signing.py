"""Standard Webhooks: the signed content, and the requests that a receiver refuses."""

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


def test_sign_matches_standard_webhooks_example() -> None:
    assert sign(SECRET, MESSAGE_ID, NOW, BODY) == SIGNED


def test_sign_accepts_secret_without_prefix() -> None:
    assert sign(SECRET.removeprefix("whsec_"), MESSAGE_ID, NOW, BODY) == SIGNED


def test_verify_accepts_standard_webhooks_example() -> None:
    verify([SECRET], {ID: MESSAGE_ID, TIMESTAMP: str(NOW), SIGNATURE: SIGNED}, BODY, NOW)


@given(secrets, message_ids, timestamps, st.binary())
def test_verify_accepts_own_signature(secret: str, message_id: str, timestamp: int, body: bytes) -> None:
    verify([secret], signed_headers([secret], message_id, timestamp, body), body, timestamp)


# Secrets


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_c2hvcnQ=", "password"])
def test_short_secret_is_refused(secret: str) -> None:
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
def test_secret_that_is_not_base64_is_refused(secret: str) -> None:
    assert not is_secret(secret)


@given(secrets)
def test_valid_secret_is_accepted(secret: str) -> None:
    assert is_secret(secret)


# Ids


@pytest.mark.parametrize("message_id", ["", "a.b", "a b", "a\r\nx", "ä"])
def test_sign_refuses_invalid_id(message_id: str) -> None:
    with pytest.raises(ValueError, match="an id must be"):
        sign(SECRET, message_id, NOW, BODY)


def test_verify_refuses_shifted_boundary_between_id_timestamp_and_body() -> None:
    """The signature of id `a` and body `NOW.x` must not be accepted for id `a.NOW` and body `x`."""
    signature = sign(SECRET, "a", NOW, b"%d.x" % NOW)
    shifted = {ID: f"a.{NOW}", TIMESTAMP: str(NOW), SIGNATURE: signature}
    with pytest.raises(WrongSignature, match="without spaces and dots"):
        verify([SECRET], shifted, b"x", NOW)


# Tampering


@given(st.binary().filter(lambda body: body != BODY))
def test_verify_refuses_changed_body(body: bytes) -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([SECRET], headers(), body, NOW)


@given(message_ids.filter(lambda message_id: message_id != MESSAGE_ID))
def test_verify_refuses_changed_id(message_id: str) -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([SECRET], {**headers(), ID: message_id}, BODY, NOW)


def test_verify_refuses_changed_timestamp() -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([SECRET], {**headers(), TIMESTAMP: str(NOW + 1)}, BODY, NOW)


@given(secrets.filter(lambda secret: key_of(secret) != key_of(SECRET)))
def test_verify_refuses_other_secret(secret: str) -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([secret], headers(), BODY, NOW)


@pytest.mark.parametrize(
    "signature",
    ["v1", "v1,", SIGNED[3:], SIGNED.lower(), SIGNED.replace("v1", "v2"), SIGNED[:-1], f"{SIGNED}=", "v1,\u00fc", ","],
)
def test_verify_refuses_malformed_signature(signature: str) -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([SECRET], {**headers(), SIGNATURE: signature}, BODY, NOW)


@pytest.mark.parametrize(("name", "value"), [(ID, None), (TIMESTAMP, ""), (SIGNATURE, None), (SIGNATURE, "")])
def test_verify_names_missing_header(name: str, value: str | None) -> None:
    given_headers = {each: text for each, text in {**headers(), name: value}.items() if text is not None}
    with pytest.raises(WrongSignature, match=f"^{name} is missing$"):
        verify([SECRET], given_headers, BODY, NOW)


# Time


@pytest.mark.parametrize("seconds", [-TOLERANCE_SECONDS, 0, TOLERANCE_SECONDS])
def test_verify_accepts_timestamp_within_tolerance(seconds: int) -> None:
    verify([SECRET], headers(), BODY, NOW + seconds)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (TOLERANCE_SECONDS + 1, "too old: 301 s, the limit is 300 s"),
        (-TOLERANCE_SECONDS - 1, "too far in the future: 301 s, the limit is 300 s"),
    ],
)
def test_verify_refuses_timestamp_outside_tolerance(seconds: int, words: str) -> None:
    with pytest.raises(WrongSignature, match=words):
        verify([SECRET], headers(), BODY, NOW + seconds)


@pytest.mark.parametrize("timestamp", ["now", "-1", "1.5", "1_614", " 1614265330", "١٦١٤", "9" * 13])
def test_verify_refuses_timestamp_that_is_not_whole_seconds(timestamp: str) -> None:
    with pytest.raises(WrongSignature, match="whole seconds since 1970"):
        verify([SECRET], {**headers(), TIMESTAMP: timestamp}, BODY, NOW)


# Rotation


def test_verify_with_previous_secret_accepts_request_signed_with_both() -> None:
    verify([OTHER_SECRET], headers(SECRET, OTHER_SECRET), BODY, NOW)


def test_verify_with_both_secrets_accepts_either() -> None:
    verify([SECRET, OTHER_SECRET], headers(OTHER_SECRET), BODY, NOW)
    verify([SECRET, OTHER_SECRET], headers(SECRET), BODY, NOW)


def test_signature_header_contains_both_signatures() -> None:
    assert headers(SECRET, OTHER_SECRET)[SIGNATURE] == f"{SIGNED} {sign(OTHER_SECRET, MESSAGE_ID, NOW, BODY)}"


def test_verify_ignores_signatures_of_other_versions() -> None:
    verify([SECRET], {**headers(), SIGNATURE: f"v1a,AAAA {SIGNED} v9,BBBB"}, BODY, NOW)


def test_verify_without_secrets_refuses_all() -> None:
    with pytest.raises(WrongSignature, match="no v1 signature"):
        verify([], headers(), BODY, NOW)
