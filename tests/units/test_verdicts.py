"""How a response of a receiver is judged."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tenure.domain.submissions import AttemptEnd, AttemptOutcome, Contract, Envelope
from tenure.domain.verdicts import DELIVERED, JITTER, RETRY_AFTER_MAX_SECONDS, Response, Verdict, judge
from tenure.submissions.gateway_queue import ReadyAttempt, judged

NOON = datetime(2041, 3, 1, 12, tzinfo=UTC)
CONTRACT = Contract(schedule_seconds=(5.0, 30.0, 120.0), max_attempts=4, already_have=(409, 208), timeout_seconds=30.0)


def verdict(response: Response, failures: int = 0, contract: Contract = CONTRACT, chance: float = 0.0) -> Verdict:
    return judge(contract, failures, response, NOON, chance)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299, 409, 208])
def test_success_and_already_have_statuses_are_delivered(status: int) -> None:
    assert verdict(Response(status)) == DELIVERED


@pytest.mark.parametrize("status", [100, 199, 300, 301, 307, 400, 401, 404, 408, 422, 500, 502, 504])
def test_other_status_fails_and_is_retried(status: int) -> None:
    assert verdict(Response(status)) == Verdict(AttemptOutcome.FAILED, f"answered {status}", 5.0)


def test_missing_response_fails_with_its_error() -> None:
    assert verdict(Response(None, "the name does not resolve")) == Verdict(
        AttemptOutcome.FAILED, "the name does not resolve", 5.0
    )


@pytest.mark.parametrize(("failures", "pause"), [(0, 5.0), (1, 30.0), (2, 120.0)])
def test_pause_follows_contract_schedule(failures: int, pause: float) -> None:
    assert verdict(Response(500), failures).pause_seconds == pause


def test_last_pause_of_schedule_repeats() -> None:
    many_attempts = replace(CONTRACT, max_attempts=100)
    assert verdict(Response(500), 50, many_attempts).pause_seconds == 120.0


def test_retries_end_exactly_at_max_attempts() -> None:
    assert (verdict(Response(500), 2).pause_seconds, verdict(Response(500), 3).pause_seconds) == (120.0, None)


def test_success_at_max_attempts_is_delivered() -> None:
    assert verdict(Response(200), 3) == DELIVERED


def test_410_ends_retries() -> None:
    assert verdict(Response(410)) == Verdict(AttemptOutcome.FAILED, "answered 410", None)


def test_410_in_already_have_is_delivered() -> None:
    assert verdict(Response(410), contract=replace(CONTRACT, already_have=(410,))) == DELIVERED


@pytest.mark.parametrize("status", [410, 500])
def test_contract_without_limit_always_retries(status: int) -> None:
    """Usage has such a contract: it is sent again, even after 410, until it is delivered."""
    assert verdict(Response(status), 1000, replace(CONTRACT, max_attempts=None)).pause_seconds == 120.0


@pytest.mark.parametrize(
    ("header", "pause"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 1.0),
        ("0000000120", 120.0),
        ("3600", 3600.0),
        ("3601", 3600.0),
        ("9" * 400, 3600.0),
        (format_datetime(NOON + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOON + timedelta(days=2), usegmt=True), 3600.0),
        (format_datetime(NOON - timedelta(seconds=90), usegmt=True), 1.0),
    ],
)
def test_retry_after_sets_pause_within_limits(header: str, pause: float) -> None:
    for status in (429, 503):
        assert verdict(Response(status, retry_after=header)).pause_seconds == pause, status


@pytest.mark.parametrize("header", ["", "soon", "-1", "1.5", "٣", "Mon, 99 Foo 2041", "1" + "\x00"])
def test_invalid_retry_after_is_ignored(header: str) -> None:
    assert verdict(Response(503, retry_after=header)).pause_seconds == 5.0


def test_retry_after_of_other_statuses_is_ignored() -> None:
    assert verdict(Response(500, retry_after="7")).pause_seconds == 5.0


def test_retry_after_does_not_override_max_attempts() -> None:
    assert verdict(Response(503, retry_after="7"), 3).pause_seconds is None


@given(st.text(max_size=60), st.integers(100, 599), st.integers(0, 30), st.floats(0, 1))
def test_pause_is_bounded_for_any_status_and_header(header: str, status: int, failures: int, chance: float) -> None:
    pause = judge(CONTRACT, failures, Response(status, retry_after=header), NOON, chance).pause_seconds
    assert pause is None or 0 <= pause <= RETRY_AFTER_MAX_SECONDS


@given(st.floats(0, 1))
def test_jitter_only_lengthens_pause_within_bound(chance: float) -> None:
    pause = verdict(Response(500), chance=chance).pause_seconds
    assert pause is not None
    assert 5.0 <= pause <= 5.0 * (1 + JITTER)


@given(
    st.text(st.characters(max_codepoint=255))
    | st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,20} Jan [0-9]{1,25} [0-9]{1,20}:0:0 [+-][0-9]{1,12}")
)
def test_pause_is_bounded_for_malformed_retry_after(header: str) -> None:
    pause = verdict(Response(503, retry_after=header)).pause_seconds
    assert pause is not None
    assert 0 <= pause <= RETRY_AFTER_MAX_SECONDS


# Receipts.

PAYLOAD = b'{"a": 1}'
RECEIPT = f"sha256={sha256(PAYLOAD).hexdigest()}"


def end_of(response: Response, was_due: int | None = None) -> AttemptEnd:
    ready = ReadyAttempt(3, 1, 0, was_due, Envelope("one", "one", PAYLOAD, CONTRACT))
    return judged(ready, response, 0, others_delivered=False)


def test_receipt_of_body_that_was_sent_is_stored() -> None:
    for receipt in (RECEIPT, RECEIPT.upper()):
        end = end_of(Response(200, receipt=receipt))
        assert (end.outcome, end.has_receipt) == (AttemptOutcome.DELIVERED, True)
    assert not end_of(Response(200)).has_receipt


@pytest.mark.parametrize(
    "receipt", ["", "sha256=", f"sha256={'0' * 64}", RECEIPT.replace("sha256", "md5"), f"{RECEIPT}, {RECEIPT}"]
)
def test_receipt_of_another_body_fails_attempt(receipt: str) -> None:
    end = end_of(Response(200, receipt=receipt))
    assert (end.outcome, end.status, end.error) == (AttemptOutcome.FAILED, 200, "the receipt names another body")
    assert (end.counts, end.has_receipt) == (True, False)


def test_receipt_does_not_deliver_refused_attempt() -> None:
    end = end_of(Response(500, receipt=RECEIPT))
    assert (end.outcome, end.has_receipt, end.error) == (AttemptOutcome.FAILED, False, "answered 500")


def test_failed_early_attempt_waits_until_due_or_as_long_as_receiver_asks() -> None:
    hour = 3600 * 1_000_000
    assert end_of(Response(500), hour).pause_microseconds == hour
    assert end_of(Response(503, retry_after="1800"), hour).pause_microseconds == hour
    assert end_of(Response(503, retry_after="1800"), hour // 4).pause_microseconds == hour // 2


def test_failed_early_attempt_ends_retries_only_after_410() -> None:
    assert judge(CONTRACT, 19, Response(500), NOON, 0.0, early=True).pause_seconds == 0.0
    assert judge(CONTRACT, 0, Response(410), NOON, 0.0, early=True).pause_seconds is None
