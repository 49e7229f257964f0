"""What an answer of a receiver means."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tenure.model.submissions import AttemptOutcome, Contract
from tenure.submissions.verdicts import DELIVERED, JITTER, RETRY_AFTER_MAX_SECONDS, Answer, Verdict, judge

NOON = datetime(2041, 3, 1, 12, tzinfo=UTC)
CONTRACT = Contract(schedule_seconds=(5.0, 30.0, 120.0), max_attempts=4, already_have=(409, 208), timeout_seconds=30.0)


def verdict(answer: Answer, failures: int = 0, contract: Contract = CONTRACT, chance: float = 0.0) -> Verdict:
    return judge(contract, failures, answer, NOON, chance)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299, 409, 208])
def test_is_delivered_by(status: int) -> None:
    assert verdict(Answer(status)) == DELIVERED


@pytest.mark.parametrize("status", [100, 199, 300, 301, 307, 400, 401, 404, 408, 422, 500, 502, 504])
def test_fails_by_any_other_status_and_comes_again(status: int) -> None:
    assert verdict(Answer(status)) == Verdict(AttemptOutcome.FAILED, f"answered {status}", 5.0)


def test_fails_without_an_answer_and_says_why() -> None:
    assert verdict(Answer(None, "the name does not resolve")) == Verdict(
        AttemptOutcome.FAILED, "the name does not resolve", 5.0
    )


@pytest.mark.parametrize(("failures", "pause"), [(0, 5.0), (1, 30.0), (2, 120.0)])
def test_waits_as_the_contract_says(failures: int, pause: float) -> None:
    assert verdict(Answer(500), failures).pause_seconds == pause


def test_repeats_the_last_pause() -> None:
    patient = replace(CONTRACT, max_attempts=100)
    assert verdict(Answer(500), 50, patient).pause_seconds == 120.0


def test_gives_up_at_the_limit_and_not_before() -> None:
    assert (verdict(Answer(500), 2).pause_seconds, verdict(Answer(500), 3).pause_seconds) == (120.0, None)


def test_a_success_at_the_limit_is_a_success() -> None:
    assert verdict(Answer(200), 3) == DELIVERED


def test_gone_is_the_end() -> None:
    assert verdict(Answer(410)) == Verdict(AttemptOutcome.FAILED, "answered 410", None)


def test_gone_may_be_listed_as_already_had() -> None:
    assert verdict(Answer(410), contract=replace(CONTRACT, already_have=(410,))) == DELIVERED


@pytest.mark.parametrize("status", [410, 500])
def test_what_is_never_given_up_comes_again(status: int) -> None:
    """Not even by 410: usage is sent for as long as it takes."""
    assert verdict(Answer(status), 1000, replace(CONTRACT, max_attempts=None)).pause_seconds == 120.0


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("header", "pause"),
    [
        ("7", 7.0),
        (" 7 ", 7.0),
        ("0", 1.0),
        ("3600", 3600.0),
        ("3601", 3600.0),
        ("9" * 400, 3600.0),
        (format_datetime(NOON + timedelta(seconds=90), usegmt=True), 90.0),
        (format_datetime(NOON + timedelta(days=2), usegmt=True), 3600.0),
        (format_datetime(NOON - timedelta(seconds=90), usegmt=True), 1.0),
    ],
)
def test_comes_again_when_it_is_asked_to(status: int, header: str, pause: float) -> None:
    assert verdict(Answer(status, retry_after=header)).pause_seconds == pause


@pytest.mark.parametrize("header", ["", "soon", "-1", "1.5", "٣", "Mon, 99 Foo 2041", "1" + "\x00"])
def test_ignores_what_it_cannot_understand(header: str) -> None:
    assert verdict(Answer(503, retry_after=header)).pause_seconds == 5.0


def test_ignores_retry_after_of_other_statuses() -> None:
    assert verdict(Answer(500, retry_after="7")).pause_seconds == 5.0


def test_retry_after_does_not_lift_the_limit() -> None:
    assert verdict(Answer(503, retry_after="7"), 3).pause_seconds is None


@given(st.text(max_size=60), st.integers(100, 599), st.integers(0, 30), st.floats(0, 1))
def test_whatever_comes_back_a_verdict_is_found_and_no_pause_is_endless(
    header: str, status: int, failures: int, chance: float
) -> None:
    pause = judge(CONTRACT, failures, Answer(status, retry_after=header), NOON, chance).pause_seconds
    assert pause is None or 0 <= pause <= RETRY_AFTER_MAX_SECONDS


@given(st.floats(0, 1))
def test_chance_only_lengthens_a_pause_and_by_little(chance: float) -> None:
    pause = verdict(Answer(500), chance=chance).pause_seconds
    assert pause is not None
    assert 5.0 <= pause <= 5.0 * (1 + JITTER)


@given(
    st.text(st.characters(max_codepoint=255))
    | st.from_regex(r"[A-Z][a-z]{2}, [0-9]{1,20} Jan [0-9]{1,25} [0-9]{1,20}:0:0 [+-][0-9]{1,12}")
)
def test_no_header_is_too_odd_to_be_judged(header: str) -> None:
    pause = verdict(Answer(503, retry_after=header)).pause_seconds
    assert pause is not None
    assert 0 <= pause <= RETRY_AFTER_MAX_SECONDS
