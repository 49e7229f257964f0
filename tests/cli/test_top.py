"""`tenure top` on a pseudo-terminal, and the figures that `tenure top` and `tenure status` show."""

import re
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tenure.cli.overview import Metrics, _gateways_cell, _seats_cell, _usage_cell, rates_of
from tenure.cli.top import ENTER, LEAVE, bars
from tenure_client.models import Activity, ActivityPoint, SubmissionCount
from tests.cli.conftest import Tenure
from tests.cli.terminals import Terminal
from tests.support.instances import RunningInstance, kill_all
from tests.support.open_requests import NOON


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningInstance]:
    folder = tmp_path_factory.mktemp("top")
    running = RunningInstance(f"sqlite:///{folder / 'tenure.db'}", folder)
    try:
        yield running.wait_until_ready()
    finally:
        kill_all([running])


def frames(shown: str) -> list[list[str]]:
    """The screens that were drawn, line by line, without colours."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown.partition(ENTER)[2].partition(LEAVE)[0])
    return [part.replace("\x1b[K", "").replace("\x1b[J", "").split("\n") for part in plain.split("\x1b[H")[1:]]


@pytest.mark.slow
def test_top_draws_once_a_second_fits_the_terminal_and_quits_on_q(instance: RunningInstance) -> None:
    with Terminal("top", "--interval", "1", columns=60, lines=16, TENURE_URL=instance.address) as terminal:
        terminal.read_until("q quits")
        began, count = time.monotonic(), len(frames(terminal.shown))
        terminal.resized(100, 20)
        terminal.read_until("\x1b[H", after=len(terminal.shown))
        terminal.read_until("\x1b[H", after=len(terminal.shown))
        terminal.type("q")
        assert terminal.end() == 0
        drawn = frames(terminal.shown)
        assert len(drawn) - count <= time.monotonic() - began + 2
        assert (len(drawn[0]), len(drawn[-1])) == (16, 20)
        assert max(map(len, drawn[0])) <= 60
        assert 60 < max(map(len, drawn[-1])) <= 100
        assert drawn[-1][-1].endswith("q quits")
        assert terminal.shown.rstrip().endswith(LEAVE)
        assert terminal.after == terminal.before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_the_terminal_clean(instance: RunningInstance, number: signal.Signals, code: int) -> None:
    with Terminal("top", TENURE_URL=instance.address) as terminal:
        terminal.read_until("q quits")
        terminal.process.send_signal(number)
        assert terminal.end() == code
        assert terminal.shown.rstrip().endswith(LEAVE)
        assert terminal.after == terminal.before
        assert "Traceback" not in terminal.shown


@pytest.mark.slow
def test_top_continues_while_the_service_is_unavailable(tmp_path: Path) -> None:
    running = RunningInstance(f"sqlite:///{tmp_path / 'tenure.db'}", tmp_path)
    try:
        running.wait_until_ready()
        with Terminal("top", "--interval", "1", columns=120, TENURE_URL=running.address) as terminal:
            terminal.read_until("q quits")
            running.kill()
            terminal.read_until("does not answer: Connection refused; is it running")
            terminal.type("q")
            assert terminal.end() == 0
    finally:
        kill_all([running])


def test_top_prints_one_frame_without_a_terminal(tenure: Tenure, instance: RunningInstance) -> None:
    result = tenure("top", "--url", instance.address)
    assert (result.code, "\x1b" in result.out) == (0, False)
    assert result.out.splitlines()[0].startswith(f"service     {instance.address}, version ")
    assert "expire-sessions" in result.out
    for interval in ("0.5", "nan", "4000"):
        assert tenure("top", "--url", instance.address, "--interval", interval).code == 2, interval


def test_top_does_not_clear_the_screen_if_service_is_unreachable() -> None:
    with Terminal("top", TENURE_URL="http://127.0.0.1:9") as terminal:
        assert terminal.end() == 5
        assert ENTER not in terminal.shown


def test_metrics_are_summed_by_labels() -> None:
    lines = ("# HELP a A.", 'a{kind="1",worker="0"} 2', 'a{kind="1",worker="1"} 3', 'a{kind="2",worker="0"} 1e3')
    text = "\n".join((*lines, 'b{gateway="or\\"ders"} 7', "c 0.5"))
    metrics = Metrics(text)
    assert metrics.value("a") == 1005
    assert metrics.value("a", kind="1") == 5
    assert metrics.by("a", "kind") == {"1": 5, "2": 1000}
    assert list(metrics.by("b", "gateway").values()) == [7]
    assert (metrics.value("c"), metrics.value("d")) == (0.5, None)


def test_status_shows_age_of_seat_counts_and_whether_usage_is_sent() -> None:
    def shown(*lines: str) -> list[str]:
        metrics = Metrics("\n".join(lines))
        cells = (_seats_cell(metrics), _usage_cell(metrics), _gateways_cell(metrics, []))
        return [cell.text for cell in cells]

    read = (
        "tenure_installation_age_seconds 4.2",
        "tenure_usage_lag_seconds 12",
        'tenure_submissions_pending{gateway="other"} 0',
    )
    no_seats = ('tenure_seats{state="limit"} 0', 'tenure_seats{state="taken"} 0')
    some_seats = ('tenure_seats{state="limit"} 2', 'tenure_seats{state="taken"} 1')
    assert shown() == ["unknown", "unknown", "unknown"]
    assert shown(*read, *no_seats) == [
        "no capacity has a limit, as of 4 s ago",
        "not sent: no [gateways.usages] is configured",
        "none configured",
    ]
    assert shown(*read, *some_seats, 'tenure_submissions_pending{gateway="usages"} 3') == [
        "1 of 2 taken (50%), as of 4 s ago",
        "delivered up to 12 s ago",
        "usages: 3 waiting",
    ]
    failed = [SubmissionCount(gateway="old", state="failed", count=2, exact=True)]
    cell = _gateways_cell(Metrics('tenure_submissions_pending{gateway="usages"} 3'), failed)
    assert (cell.text, cell.style) == ("usages: 3 waiting; old: 2 failed", "warn")


def point(at: datetime, **counts: int) -> ActivityPoint:
    names = ("opened", "upgraded", "existing", "refused", "heartbeats", "late_heartbeats", "lapsed")
    closed = {"LEASE_EXPIRED": counts.get("lapsed", 0), "STOPPED": counts.pop("stopped", 0)}
    return ActivityPoint(at=at, closed=closed, **{name: counts.get(name, 0) for name in names})


def test_rates_are_those_of_the_last_sixty_seconds() -> None:
    minutes = [
        point(NOON, opened=600),
        point(NOON + timedelta(minutes=1), opened=60, upgraded=60, heartbeats=600, lapsed=30),
        point(NOON + timedelta(minutes=2), opened=30, heartbeats=150, stopped=15),
    ]
    activity = Activity(from_=NOON, to=NOON + timedelta(minutes=2, seconds=15), step_seconds=60, points=minutes)
    assert rates_of(activity) == {
        "opened": (30 + 120 * 0.75) / 60,
        "refused": 0,
        "heartbeats": (150 + 600 * 0.75) / 60,
        "late": 0,
        "lapsed": 30 * 0.75 / 60,
        "ended": 15 / 60,
    }


def test_small_count_has_a_higher_bar_than_zero() -> None:
    assert bars([0, 1, 50, 100]) == "▁▂▄█"
