// @ts-check
/** The active alerts, each with its runbook entry, and the cleared ones. */

import { part } from "../core/api.js";
import * as format from "../core/format.js";
import { RUNBOOK } from "../core/runbook.js";
import { html, keyed } from "../core/template.js";
import { ago, badge, empty, figure, instant, section, shown, table } from "../parts/bits.js";
import { filterFields } from "../parts/filters.js";
import { pager } from "../parts/pager.js";
import { runbookOf } from "../parts/runbook.js";
import { USAGES } from "./deliveries.js";

const ACTIVE = 100;
const PAGE = 50;
const JOB_LOCK = "job:";
/** @typedef {import("../core/types.js").Alert} Alert */

export class AlertsPage {
  static path = "alerts";
  static title = "Alerts";
  static nav = {
    label: "Alerts",
    order: 70,
    needs: /** @type {import("../core/types.js").Role[]} */ (["reader", "operator"]),
    allTenants: true,
  };

  #view;
  /** @type {import("../core/live.js").Watch<{alerts: Alert[], nextCursor: string | null}>} */
  #active;
  /** @type {import("../core/live.js").Watch<{alerts: Alert[], nextCursor: string | null}>} */
  #cleared;
  /** @type {import("../core/live.js").Watch<{jobs: import("../core/types.js").Job[]}>} */
  #jobs;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#active = view.watch(() => ({ path: "alerts", query: { state: "active", limit: ACTIVE } }), 3_000);
    this.#cleared = view.watch(
      () => ({ path: "alerts", query: { state: "cleared", name: view.value("name"), limit: PAGE, cursor: view.value("cursor") } }),
      10_000,
    );
    this.#jobs = view.watch(() => ({ path: "jobs", query: { limit: 500 } }), 10_000);
  }

  render() {
    return html`
      <div class="page-head"><h1>Alerts</h1></div>
      ${this.#figures()} ${shown(this.#active, ({ alerts, nextCursor }) => this.#activeList(alerts, nextCursor))}
      ${section("Cleared in the last 90 days", shown(this.#cleared, (data) => this.#clearedList(data)), {
        note: "newest first",
        actions: html`<span class="filters">${filterFields(
          [{ name: "name", label: "Alert", options: Object.keys(RUNBOOK) }],
          (name) => this.#view.value(name),
          (changes) => {
            this.#view.setQuery({ ...changes, cursor: "" });
            this.#cleared.reload();
          },
        )}</span>`,
      })}
    `;
  }

  #figures() {
    const active = this.#active.data?.alerts;
    const watch = this.#jobs.data?.jobs.find(({ name }) => name === "watch");
    const isBlind = watch !== undefined && (watch.paused || watch.failuresInARow > 0);
    return html`<dl class="figures">
      ${figure("Active alerts", active === undefined ? "–" : format.number(active.length), active?.length === 0 ? "no alert is active" : "see below", {
        tone: active !== undefined && active.length > 0 ? "bad" : "",
      })}
      ${watch === undefined
        ? ""
        : figure("Last checked", ago(watch.lastSuccessAt), watch.paused ? "the job watch is paused" : isBlind ? "the job watch fails" : `every ${format.duration(watch.intervalSeconds * 1000)}, by the job watch`, {
            href: this.#view.href("cluster/jobs/watch"),
            tone: isBlind ? "bad" : "",
          })}
    </dl>`;
  }

  /** @param {Alert[]} alerts @param {string | null} nextCursor */
  #activeList(alerts, nextCursor) {
    if (alerts.length === 0) {
      return section(
        "Active now",
        empty("No alert is active.", "The job watch checks every 30 seconds. To be notified, configure a gateway named oncall. To list past alerts:", "tenure alerts --cleared"),
      );
    }
    return html`<div class="stack">
      ${alerts.map((alert) =>
        keyed(
          alert.alertId,
          html`<section class="panel is-bad alert" aria-label="${alert.name}">
            <div class="panel-head">
              <h2>${alert.name}</h2>
              ${alert.subject === null ? "" : html`<span class="mono">${alert.subject}</span>`}
              <span class="actions"><span>since ${instant(alert.raisedAt)} UTC, ${ago(alert.raisedAt)}</span> ${this.#link(alert)}</span>
            </div>
            <p class="observed">${alert.detail}</p>
            ${runbookOf(alert.name)}
          </section>`,
        ),
      )}
      ${nextCursor === null ? "" : html`<p class="note">There are more alerts than the ${format.number(alerts.length)} shown.</p>`}
    </div>`;
  }

  /** A link to the page on which to look first. @param {Alert} alert */
  #link({ name, subject }) {
    if (name.startsWith("usage") || name === "chunk-withheld") {
      return html`<a href="${this.#view.href(`deliveries?gateway=${USAGES}&state=pending`)}">Show deliveries</a>`;
    }
    const job = name === "job-failing" || name === "job-lock-held" ? subject : subject?.startsWith(JOB_LOCK) ? subject.slice(JOB_LOCK.length) : null;
    if (job) return html`<a href="${this.#view.href(`cluster/jobs/${part(job)}`)}">Show the job</a>`;
    if (name === "lapses-exceed-openings") return html`<a href="${this.#view.href("sessions?active=false")}">Show sessions</a>`;
    return html`<a href="${this.#view.href("cluster")}">Show the cluster</a>`;
  }

  /** @param {{alerts: Alert[], nextCursor: string | null}} data */
  #clearedList({ alerts, nextCursor }) {
    if (alerts.length === 0) return empty("No alert was cleared.", "An alert is cleared automatically when its condition no longer holds.");
    return html`
      ${table(
        "Cleared alerts",
        ["Alert", { label: "Subject", className: "optional" }, "Observed", "Raised (UTC)", { label: "Lasted", className: "number" }],
        alerts.map((alert) =>
          keyed(
            alert.alertId,
            html`<tr>
              <th scope="row">${badge(alert.name)}</th>
              <td class="optional">${alert.subject ?? html`<span class="faint">–</span>`}</td>
              <td class="wrap">${alert.detail}</td>
              <td>${instant(alert.raisedAt)}</td>
              <td class="number">${alert.clearedAt === null ? "–" : format.duration(Date.parse(alert.clearedAt) - Date.parse(alert.raisedAt))}</td>
            </tr>`,
          ),
        ),
      )}
      ${pager(this.#view, this.#cleared, nextCursor)}
    `;
  }
}
