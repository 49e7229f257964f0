"""Writes `dashboard.json`, the Grafana dashboard of Tenure: `python deploy/grafana/make.py`.

A panel is a title, a unit, and queries with their legends. The dashboard has one variable, the data source. Every
process group exports the totals of the installation, so the queries for these totals take the maximum, not the sum.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

BOARD = Path(__file__).with_name("dashboard.json")
WIDTH, HEIGHT, PER_ROW = 8, 8, 3
RATE = "[$__rate_interval]"


class Query(NamedTuple):
    expression: str
    legend: str


class Panel(NamedTuple):
    title: str
    unit: str
    queries: list[Query]
    kind: str = "timeseries"


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{RATE}))"


def _quantile(share: float, metric: str, by: str = "", where: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{where}{RATE})))"


def _quantiles(metric: str, by: str = "", where: str = "") -> list[Query]:
    suffix = f" {{{{{by}}}}}" if by else ""
    return [Query(_quantile(share, metric, by, where), f"p{share * 100:g}{suffix}") for share in (0.5, 0.99)]


LAPSES = 'reason=~"EXPIRED|LEASE_EXPIRED|IDLE_TIMEOUT"'
PANELS = [
    Panel("Active sessions", "short", [Query("max by (kind) (tenure_sessions_active)", "kind {{kind}}")]),
    Panel(
        "Creations by kind",
        "ops",
        [Query(_rate('tenure_sessions_opened_total{status="created"}', "kind"), "kind {{kind}}")],
    ),
    Panel(
        "Upgrades by kind",
        "ops",
        [Query(_rate('tenure_sessions_opened_total{status="upgraded"}', "kind"), "to kind {{kind}}")],
    ),
    Panel("Refusals by reason", "ops", [Query(_rate("tenure_sessions_refused_total", "reason"), "{{reason}}")]),
    Panel("Ends by reason", "ops", [Query(_rate("tenure_sessions_closed_total", "reason"), "{{reason}}")]),
    Panel(
        "Lapses and expired leases",
        "ops",
        [
            Query(f"sum(rate(tenure_sessions_closed_total{{{LAPSES}}}{RATE}))", "lapses"),
            Query(f"sum(rate(tenure_sessions_lease_expired_total{RATE}))", "leases"),
        ],
    ),
    Panel(
        "Heartbeats",
        "ops",
        [
            Query(f"sum(rate(tenure_sessions_heartbeat_total{RATE}))", "renewed"),
            Query(f"sum(rate(tenure_sessions_heartbeat_late_total{RATE}))", "late"),
        ],
    ),
    Panel("Seats", "short", [Query("max by (state) (tenure_seats)", "{{state}}")]),
    Panel("Sweep duration", "s", _quantiles("tenure_job_duration_seconds", where='{job="expire-sessions"}')),
    Panel("Runs of jobs", "ops", [Query(_rate("tenure_job_runs_total", "job, outcome"), "{{job}} {{outcome}}")]),
    Panel("Failed runs in a row", "short", [Query("max by (job) (tenure_job_failures_in_a_row)", "{{job}}")]),
    Panel("Job locks held", "s", [Query("max by (job) (tenure_job_lock_held_seconds)", "{{job}}")]),
    Panel(
        "Usage: share of attempts that delivered",
        "percentunit",
        [
            Query(
                f'sum(rate(tenure_submission_attempts_total{{gateway="usages",outcome="delivered"}}{RATE})) / '
                f'sum(rate(tenure_submission_attempts_total{{gateway="usages"}}{RATE}))',
                "delivered",
            )
        ],
    ),
    Panel("Usage lag", "s", [Query("max(tenure_usage_lag_seconds)", "lag")]),
    Panel(
        "Usage in trouble",
        "short",
        [
            Query("max(tenure_usage_failures_in_a_row)", "failures in a row"),
            Query("max(tenure_usage_chunks_withheld)", "chunks withheld"),
            Query("max(tenure_clock_behind_seconds)", "seconds behind the last cut"),
        ],
    ),
    Panel(
        "Leader timeline",
        "none",
        [Query("sum by (instance, worker, lease) (tenure_leader)", "{{lease}} {{instance}} worker {{worker}}")],
        "state-timeline",
    ),
    Panel(
        "Lock contention",
        "ops",
        [
            Query(_rate("tenure_lease_contention_total", "lease"), "{{lease}}"),
            Query(_rate("tenure_leases_reclaimed_total", "lease"), "reclaimed {{lease}}"),
            Query(_rate("tenure_leader_acquired_total", "lease"), "acquired {{lease}}"),
        ],
    ),
    Panel("Active alerts", "short", [Query("max by (alert) (tenure_alerts_active) > 0", "{{alert}}")]),
    Panel(
        "Attempts by gateway",
        "ops",
        [Query(_rate("tenure_submission_attempts_total", "gateway, outcome"), "{{gateway}} {{outcome}}")],
    ),
    Panel("Pending submissions", "short", [Query("max by (gateway) (tenure_submissions_pending)", "{{gateway}}")]),
    Panel("Batch size", "short", _quantiles("tenure_store_batch_size", "operation")),
    Panel("Store operations", "s", [Query(_quantile(0.99, "tenure_store_seconds", "operation"), "{{operation}}")]),
    Panel("Store retries", "ops", [Query(_rate("tenure_store_retries_total", "cause"), "{{cause}}")]),
    Panel("HTTP latency", "s", _quantiles("tenure_http_request_seconds")),
    Panel(
        "HTTP latency by route (p99)",
        "s",
        [Query(_quantile(0.99, "tenure_http_request_seconds", "route"), "{{route}}")],
    ),
    Panel(
        "HTTP requests by status", "ops", [Query(_rate("tenure_http_request_seconds_count", "status"), "{{status}}")]
    ),
    Panel("Refused by limit", "ops", [Query(_rate("tenure_http_refused_total", "limit"), "{{limit}}")]),
    Panel("Open streams", "short", [Query("sum(tenure_streams_open)", "streams")]),
    Panel(
        "Stream traffic",
        "Bps",
        [
            Query(f"sum(rate(tenure_stream_received_bytes_total{RATE}))", "received"),
            Query(f"sum(rate(tenure_stream_sent_bytes_total{RATE}))", "sent"),
        ],
    ),
    Panel(
        "Stream messages",
        "ops",
        [
            Query(f"sum(rate(tenure_stream_received_messages_total{RATE}))", "received"),
            Query(f"sum(rate(tenure_stream_sent_messages_total{RATE}))", "sent"),
        ],
    ),
    Panel("Texts of streams", "ops", [Query(_rate("tenure_stream_results_total", "result"), "{{result}}")]),
    Panel(
        "Audio of streams",
        "none",
        [Query(f"sum(rate(tenure_stream_audio_seconds_total{RATE}))", "seconds of audio per second")],
    ),
    Panel("Workers", "none", [Query("tenure_worker_up", "{{instance}} worker {{worker}}")], "state-timeline"),
    Panel("Versions", "short", [Query("count by (version) (tenure_build_info)", "{{version}}")]),
    Panel(
        "Age of installation metrics",
        "s",
        [Query("max by (instance) (tenure_installation_age_seconds)", "{{instance}}")],
    ),
]

SOURCE = {"type": "prometheus", "uid": "${source}"}


def _panel(number: int, panel: Panel) -> dict[str, Any]:
    row, column = divmod(number, PER_ROW)
    return {
        "id": number + 1,
        "title": panel.title,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": {"h": HEIGHT, "w": WIDTH, "x": column * WIDTH, "y": row * HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }


def board() -> str:
    content = {
        "title": "Tenure",
        "uid": "tenure",
        "schemaVersion": 38,
        "editable": True,
        "refresh": "30s",
        "tags": ["tenure"],
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "type": "datasource", "query": "prometheus", "label": "Data source"}]
        },
        "panels": [_panel(number, panel) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(content, indent=2) + "\n"


if __name__ == "__main__":
    BOARD.write_text(board(), encoding="utf-8")
