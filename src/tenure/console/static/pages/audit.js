// @ts-check
/** The audit log: who changed what, and when. */

import { part } from "../core/api.js";
import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { badge, empty, id, instant, section, shown, table } from "../parts/bits.js";
import { filterFields } from "../parts/filters.js";
import { pager } from "../parts/pager.js";
import { spanFields, spanOf } from "../parts/span.js";

const PAGE = 100;
const ACTIONS = [
  "session.ended",
  "sessions.imported",
  "capacity.changed",
  "capacity.deleted",
  "job.run_requested",
  "job.paused",
  "job.resumed",
  "lease.resigned",
  "submission.retried",
  "submission.cancelled",
  "usage.windows_sent",
  "key.created",
  "key.revoked",
  "signing-key.rotated",
];
/** The names of the filters, in the address and in the API. */
const FILTERS = ["subject", "action", "target"];

/** @typedef {import("../core/types.js").AuditEntry} Entry */

export class AuditPage {
  static path = "audit-log";
  static title = "Audit log";
  static nav = {
    label: "Audit log",
    order: 80,
    needs: /** @type {import("../core/types.js").Role[]} */ (["reader", "operator"]),
    allTenants: true,
  };

  #view;
  /** @type {import("../core/live.js").Watch<{entries: Entry[], nextCursor: string | null}>} */
  #entries;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#entries = view.watch(
      () => ({ path: "audit-log", query: { ...this.#filters(), ...spanOf(view, ""), limit: PAGE, cursor: view.value("cursor") } }),
      5_000,
    );
  }

  #filters() {
    return Object.fromEntries(FILTERS.map((name) => [name, this.#view.value(name)]).filter(([, value]) => value !== ""));
  }

  #isFiltered() {
    const { from, to } = spanOf(this.#view, "");
    return Object.keys(this.#filters()).length > 0 || from !== "" || to !== "";
  }

  render() {
    return html`
      <div class="page-head"><h1>Audit log</h1></div>
      <div class="filters" role="search" aria-label="Filter entries">
        ${spanFields(this.#view, "", () => this.#entries.reload())}
        ${filterFields(
          [
            { name: "action", label: "Action", options: ACTIONS },
            { name: "subject", label: "Who (public id of the key, or subject)" },
            { name: "target", label: "Target (id or name)" },
          ],
          (name) => this.#view.value(name),
          (changes) => this.#change(changes),
        )}
        ${this.#isFiltered()
          ? html`<button type="button" class="plain" @click=${() => this.#change({ subject: "", action: "", target: "", span: "", from: "", to: "" })}>
              Clear filters
            </button>`
          : ""}
      </div>
      ${section("Who changed what", shown(this.#entries, (data) => this.#table(data)), { note: "newest first, kept for 400 days" })}
    `;
  }

  /** @param {{entries: Entry[], nextCursor: string | null}} data */
  #table({ entries, nextCursor }) {
    if (entries.length === 0 && this.#view.value("cursor") === "") {
      return this.#isFiltered()
        ? empty("No entry matches.", "Each filter compares the whole value: enter a complete id, or the exact name of a job or lease.")
        : empty("No changes yet.", "Operators’ changes add entries, such as a new key or an ended session. Open requests, heartbeats and new submissions do not. To add a first entry, create a key:", "tenure keys create --name ops --role operator --expires 90d");
    }
    return html`
      ${table(
        "Entries",
        ["When (UTC)", "Who", "Action", "Target", { label: "Changes", className: "optional number" }, { label: "Detail", className: "optional" }, { label: "Request", className: "optional" }],
        entries.map((entry) => keyed(entry.entryId, this.#row(entry))),
      )}
      ${pager(this.#view, this.#entries, nextCursor)}
    `;
  }

  /** @param {Entry} entry */
  #row(entry) {
    return html`<tr>
      <td>${instant(entry.at)}</td>
      <th scope="row" class="wrap-name">
        <a href="${this.#view.href(`audit-log?subject=${part(entry.subject)}`)}" title="${entry.subject}">${entry.name || entry.subject}</a>
        ${entry.name && entry.name !== entry.subject ? html`<span class="small">${entry.subject}</span>` : ""}
      </th>
      <td>${badge(entry.action, entry.action.endsWith("deleted") || entry.action.endsWith("revoked") ? "warn" : "quiet")}</td>
      <td>${this.#target(entry)}</td>
      <td class="optional number">${format.number(entry.changes)}</td>
      <td class="optional ${entry.detail ? "wrap" : ""}">${entry.detail || html`<span class="faint">–</span>`}</td>
      <td class="optional">${id(entry.requestId, { label: "request id" })}</td>
    </tr>`;
  }

  /** The target, with a link to its page if it has one. @param {Entry} entry */
  #target({ action, target }) {
    const kind = action.split(".")[0];
    if (kind === "job") return html`<a href="${this.#view.href(`cluster/jobs/${part(target)}`)}">${target}</a>`;
    const page = kind === undefined || !format.isUuid(target) ? undefined : { session: "sessions", capacity: "capacities", submission: "deliveries" }[kind];
    if (page === undefined) return format.isUuid(target) || target.length > 24 ? id(target, { label: "target" }) : target;
    return id(target, { href: this.#view.href(`${page}/${part(target)}`), label: "target" });
  }

  /** @param {Record<string, string>} changes */
  #change(changes) {
    this.#view.setQuery({ ...changes, cursor: "" });
    this.#entries.reload();
  }
}
