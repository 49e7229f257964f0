// @ts-check
/** The overview: live sessions, the leader, usage, jobs and active alerts. */

import { serverNow } from "../core/clock.js";
import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { LAG_MS, lateness, undelivered } from "../core/windows.js";
import { ago, badge, choice, empty, figure, instant, isSilent, section, shown, table } from "../parts/bits.js";
import "../parts/charts/bars.js";
import "../parts/charts/series.js";
import { deliveredUntil } from "../parts/delivered.js";
import { USAGES } from "./deliveries.js";
import { jobState } from "./job.js";

const WINDOWS = 60;
/** How many pending submissions are read to find how many of them fail. */
const PENDING = 100;
/** Counting millions of sessions takes a second or two. The rest of the page does not wait for the count. */
const COUNT_TIMEOUT_MS = 30_000;
const CAPACITIES = 500;
const FULLEST = 8;
/** The spans of the charts, with the length of a step in seconds. */
const SPANS = [
  { value: "1h", label: "1 hour", seconds: 3_600, step: 60, per: "minute" },
  { value: "6h", label: "6 hours", seconds: 21_600, step: 300, per: "5 minutes" },
  { value: "24h", label: "24 hours", seconds: 86_400, step: 900, per: "15 minutes" },
  { value: "7d", label: "7 days", seconds: 604_800, step: 7_200, per: "2 hours" },
];

/**
 * @typedef {import("../core/types.js").Activity} Activity
 * @typedef {import("../core/types.js").Alert} Alert
 * @typedef {import("../core/types.js").Capacity} Capacity
 * @typedef {import("../core/types.js").Job} Job
 * @typedef {import("../core/types.js").Lease} Lease
 * @typedef {import("../core/types.js").SessionMetrics} SessionMetrics
 * @typedef {import("../core/types.js").Submission} Submission
 * @typedef {import("../core/types.js").UsageWindow} UsageWindow
 */
/** @template T @typedef {import("../core/live.js").Watch<T>} Watch */

export class OverviewPage {
  static path = "";
  static title = "Overview";
  static nav = { label: "Overview", order: 10 };

  #view;
  /** @type {Watch<{activeSessions: number, version: string}>} */
  #health;
  /** @type {Watch<SessionMetrics> | null} */
  #metrics = null;
  /** @type {Watch<{capacities: Capacity[], nextCursor: string | null}> | null} */
  #capacities = null;
  /** @type {Watch<Activity> | null} */
  #activity = null;
  /** @type {Watch<{alerts: Alert[]}> | null} */
  #alerts = null;
  /** @type {Watch<{leases: Lease[]}> | null} */
  #leases = null;
  /** @type {Watch<{jobs: Job[]}> | null} */
  #jobs = null;
  /** @type {Watch<{windows: UsageWindow[]}> | null} */
  #windows = null;
  /** The newest pending submissions. @type {Watch<{submissions: Submission[], nextCursor: string | null}> | null} */
  #pending = null;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    const isReader = view.may("reader", "operator");
    if (isReader) {
      this.#capacities = view.watch(() => ({ path: "capacities", query: { limit: CAPACITIES } }), 15_000);
    }
    if (view.seesInstallation) {
      this.#activity = view.watch(() => this.#activityAddress(), 10_000);
      this.#leases = view.watch(() => ({ path: "leases", query: { limit: 500 } }), 4_000);
      this.#alerts = view.watch(() => ({ path: "alerts", query: { state: "active", limit: 100 } }), 5_000);
      this.#jobs = view.watch(() => ({ path: "jobs", query: { limit: 500 } }), 10_000);
      this.#windows = view.watch(() => ({ path: "usage/windows", query: { limit: WINDOWS } }), 10_000);
      this.#pending = view.watch(() => ({ path: "submissions", query: { state: "pending", limit: PENDING } }), 10_000);
    }
    // Load these two last: they count every live session.
    this.#health = view.watch(() => "health", isReader ? 30_000 : 3_000);
    if (isReader) {
      this.#metrics = view.watch(() => "sessions/metrics", 4_000, undefined, { timeoutMs: COUNT_TIMEOUT_MS });
    }
  }

  get #span() {
    return SPANS.find(({ value }) => value === this.#view.value("span")) ?? /** @type {typeof SPANS[0]} */ (SPANS[0]);
  }

  #activityAddress() {
    const { seconds, step } = this.#span;
    const to = serverNow();
    return { path: "activity", query: { from: new Date(to - seconds * 1000).toISOString(), to: new Date(to).toISOString(), step } };
  }

  render() {
    return html`
      <div class="page-head"><h1>Overview</h1>${this.#version()} ${this.#spans()}</div>
      ${this.#figures()} ${this.#alertList()} ${this.#charts()}
      <div class="columns">
        ${this.#kinds()} ${this.#seats()} ${this.#leaders()} ${this.#jobList()}
      </div>
    `;
  }

  #version() {
    const version = this.#health.data?.version;
    return version ? html`<span class="note">Tenure ${version}</span>` : "";
  }

  #spans() {
    const activity = this.#activity;
    if (activity === null) return "";
    return html`<div class="actions">${choice("Span of the charts", SPANS, this.#span.value, (span) => {
      this.#view.setQuery({ span: span === "1h" ? "" : span }, { replace: true });
      activity.reload();
    })}</div>`;
  }

  #charts() {
    const activity = this.#activity;
    if (activity === null) return "";
    const chart = (/** @type {string} */ title, /** @type {{label: string, tone: string, of: (point: Activity["points"][0]) => number}[]} */ lines) =>
      section(
        title,
        shown(
          activity,
          ({ points, stepSeconds }) => html`<tenure-series
            .label=${`${title}, the last ${this.#span.label}`}
            .stepMs=${stepSeconds * 1000}
            .isPartial=${true}
            .lines=${lines}
            .points=${points.map((point) => ({ at: point.at, values: lines.map(({ of }) => of(point)) }))}
          ></tenure-series>`,
        ),
        { note: `per ${this.#span.per}` },
      );
    return html`<div class="columns of-three">
      ${chart("Openings", [
        { label: "opened", tone: "1", of: ({ opened, upgraded }) => opened + upgraded },
        { label: "already live", tone: "2", of: ({ existing }) => existing },
        { label: "refused", tone: "5", of: ({ refused }) => refused },
      ])}
      ${chart("Ends", [
        { label: "lapsed", tone: "3", of: ({ lapsed }) => lapsed },
        { label: "ended on request", tone: "1", of: ({ closed }) => sum(closed, ENDED_BY_SOMEBODY) },
        { label: "other", tone: "6", of: ({ closed, lapsed }) => sum(closed) - lapsed - sum(closed, ENDED_BY_SOMEBODY) },
      ])}
      ${chart("Heartbeats", [
        { label: "renewed a session", tone: "2", of: ({ heartbeats }) => heartbeats },
        { label: "too late", tone: "5", of: ({ lateHeartbeats }) => lateHeartbeats },
      ])}
    </div>`;
  }

  #figures() {
    const metrics = this.#metrics?.data;
    const liveSessions = metrics?.activeSessions ?? this.#health.data?.activeSessions;
    return html`<dl class="figures">
      ${figure("Live sessions", format.number(liveSessions), metrics ? `of ${format.number(metrics.totalSessions)} stored sessions` : "", {
        href: this.#view.href("sessions?active=true"),
      })}
      ${metrics
        ? figure("Active", format.number(metrics.activeByState.active ?? 0), `${format.number(metrics.activeByState.created ?? 0)} live without activity yet`, {
            href: this.#view.href("sessions?state=active"),
          })
        : ""}
      ${this.#billed()} ${this.#delivered()} ${this.#deliveries()} ${this.#alertFigure()}
    </dl>`;
  }

  #billed() {
    const newest = this.#windows?.data?.windows[0];
    if (!this.#windows) return "";
    if (newest === undefined) return figure("Usage computed until", "–", this.#windows.data ? "no window yet" : "");
    const lag = serverNow() - Date.parse(newest.endAt);
    return figure("Usage computed until", format.shortTime(newest.endAt, serverNow()), deliveredUntil(this.#windows.data?.windows ?? []), {
      href: this.#view.href("usage"),
      tone: lag > LAG_MS ? "warn" : "",
    });
  }

  #delivered() {
    const data = this.#windows?.data;
    if (!data || data.windows.length === 0) return "";
    const waiting = undelivered(data.windows);
    const oldest = waiting.at(-1);
    const isMore = waiting.length === WINDOWS;
    return figure(
      "Usage windows not delivered",
      `${format.number(waiting.length)}${isMore ? " or more" : ""}`,
      oldest ? html`the oldest ended ${ago(oldest.endAt)}` : `all of the last ${format.number(data.windows.length)} delivered`,
      {
        href: this.#view.href(waiting.some(({ delivery }) => delivery === "waiting") ? `deliveries?gateway=${USAGES}` : "usage"),
        tone: lateness(data.windows),
      },
    );
  }

  #deliveries() {
    const data = this.#pending?.data;
    if (!data) return "";
    const failing = data.submissions.filter(({ lastError }) => lastError !== null);
    const gateways = [...new Set(failing.map(({ gateway }) => gateway))].sort();
    const isMore = data.nextCursor !== null;
    return figure(
      "Deliveries that wait",
      `${format.number(data.submissions.length)}${isMore ? " or more" : ""}`,
      failing.length > 0
        ? `${format.number(failing.length)}${isMore ? " or more" : ""} fail and are retried: ${gateways.join(", ")}`
        : `none of ${isMore ? `the newest ${format.number(data.submissions.length)}` : "them"} fails`,
      { href: this.#view.href("deliveries?state=pending"), tone: failing.length > 0 ? "warn" : "" },
    );
  }

  #alertFigure() {
    const alerts = this.#alerts?.data?.alerts;
    if (alerts === undefined) return "";
    return figure("Active alerts", format.number(alerts.length), alerts.length === 0 ? "no alert is active" : "see below", {
      href: this.#view.href("alerts"),
      tone: alerts.length > 0 ? "bad" : "",
    });
  }

  #alertList() {
    const alerts = this.#alerts?.data?.alerts ?? [];
    if (alerts.length === 0) return "";
    return section(
      "Active alerts",
      table(
        "Active alerts",
        ["Alert", "Subject", "Observed", "Since"],
        alerts.map((alert) =>
          keyed(
            alert.alertId,
            html`<tr>
              <th scope="row">${badge(alert.name, "bad")}</th>
              <td>${alert.subject ?? "–"}</td>
              <td class="wrap">${alert.detail}</td>
              <td>${ago(alert.raisedAt)}</td>
            </tr>`,
          ),
        ),
      ),
      { className: "is-bad" },
    );
  }

  #kinds() {
    const metrics = this.#metrics;
    if (metrics === null) return "";
    return section(
      "Live sessions by kind",
      metrics.data === null && metrics.error === null ? html`<p class="note" role="status">Counting…</p>` : shown(
        metrics,
        (data) => html`<tenure-bars
          .label=${"Live sessions by kind"}
          .items=${Object.entries(data.activeByKind).map(([kind, value]) => ({
            label: `Kind ${kind}`,
            value,
            tone: kind,
            href: this.#view.href(`sessions?active=true&kind=${kind}`),
          }))}
        ></tenure-bars>`,
      ),
    );
  }

  #seats() {
    const capacities = this.#capacities;
    if (capacities === null) return "";
    return section(
      "Seats taken",
      shown(capacities, (data) => {
        const limited = data.capacities.filter(({ maxSessions }) => maxSessions !== null);
        if (limited.length === 0) {
          return empty(
            "No capacity has a limit.",
            "Every capacity takes any number of sessions. To set a limit of 20 seats:",
            `tenure capacities set CAPACITY --seats 20`,
          );
        }
        const share = (/** @type {Capacity} */ each) => each.activeSessions / Math.max(1, each.maxSessions ?? 1);
        const fullest = [...limited].sort((one, other) => share(other) - share(one)).slice(0, FULLEST);
        return html`<tenure-bars
          .label=${"Seats taken, fullest capacities first"}
          .most=${1}
          .items=${fullest.map((each) => ({
            label: html`<span class="mono" title="${each.capacityId}">${format.shortId(each.capacityId)}</span>`,
            value: each.activeSessions,
            share: share(each),
            note: `of ${format.number(each.maxSessions)}`,
            tone: share(each) >= 1 ? "5" : share(each) >= 0.9 ? "3" : "2",
            href: this.#view.href(`capacities/${each.capacityId}`),
          }))}
        ></tenure-bars>`;
      }),
      {
        note: capacities.data?.nextCursor
          ? `fullest of the first ${format.number(CAPACITIES)} capacities`
          : capacities.data
            ? seatsNote(capacities.data.capacities)
            : "",
      },
    );
  }

  #leaders() {
    const leases = this.#leases;
    if (leases === null) return "";
    return section(
      "Who leads",
      shown(leases, (data) => {
        const rows = data.leases.filter(({ name }) => !name.startsWith("job:"));
        if (rows.length === 0) return empty("No instance has led yet.", "The first instance that is ready acquires the lease within seconds.");
        return table(
          "Leases",
          ["Lease", "Leader", { label: "Epoch", className: "optional number" }, "Since"],
          rows.map((lease) =>
            keyed(
              lease.name,
              html`<tr>
                <th scope="row">${lease.name}</th>
                <td class="wrap-name">${lease.held ? lease.holder : badge("not held", "bad")} ${isSilent(lease) ? badge("silent", "warn") : ""}</td>
                <td class="optional number">${format.number(lease.epoch)}</td>
                <td>${lease.held ? instant(lease.acquiredAt) : html`<span class="faint">was ${lease.holder}</span>`}</td>
              </tr>`,
            ),
          ),
        );
      }),
    );
  }

  #jobList() {
    const jobs = this.#jobs;
    if (jobs === null) return "";
    return section(
      "Jobs",
      shown(jobs, (data) =>
        table(
          "Jobs",
          ["Job", "State", "Last success", { label: "Next run", className: "optional" }],
          data.jobs.map((job) =>
            keyed(
              job.name,
              html`<tr>
                <th scope="row">${job.name}</th>
                <td>${jobState(job)}</td>
                <td>${ago(job.lastSuccessAt)}</td>
                <td class="optional">${job.paused ? html`<span class="faint">–</span>` : instant(job.retryAt ?? job.nextRunAt)}</td>
              </tr>`,
            ),
          ),
        ),
      ),
    );
  }
}

/** How many capacities have a limit, and how many of these are shown. @param {Capacity[]} capacities */
function seatsNote(capacities) {
  const limited = capacities.filter(({ maxSessions }) => maxSessions !== null).length;
  const all = format.counted(capacities.length, "capacity", "capacities");
  const found = limited === capacities.length ? all : `${format.number(limited)} of ${all} have a limit`;
  return limited > FULLEST ? `the fullest ${format.number(FULLEST)}; ${found}` : found;
}

const ENDED_BY_SOMEBODY = ["STOPPED", "TERMINATED"];

/** @param {Record<string, number>} counts @param {string[]} [names] */
const sum = (counts, names = Object.keys(counts)) => names.reduce((total, name) => total + (counts[name] ?? 0), 0);
