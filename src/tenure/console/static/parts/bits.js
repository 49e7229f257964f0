// @ts-check
/** Small pieces that the pages share. */

import { ApiError } from "../core/api.js";
import { serverNow } from "../core/clock.js";
import * as format from "../core/format.js";
import { html, Template } from "../core/template.js";
import "./copy.js";
import "./table.js";
import "./time.js";

/** An instant relative to now: "12 s ago" or "in 3 min". @param {string | null | undefined} at */
export const ago = (at) => (at ? html`<tenure-time at="${at}"></tenure-time>` : html`<span class="faint">never</span>`);

/** An instant as a time of day (UTC), with the date if it is not today. @param {string | null | undefined} at */
export const instant = (at) =>
  at ? html`<tenure-time exact at="${at}"></tenure-time>` : html`<span class="faint">–</span>`;

/** The time left until a deadline. @param {string} at */
export const countdown = (at) => html`<tenure-countdown at="${at}"></tenure-countdown>`;

/**
 * An id with a button that copies it.
 * @param {string | null | undefined} value
 * @param {{label?: string, href?: string, isShort?: boolean}} [options]
 */
export function id(value, { label = "id", href, isShort = true } = {}) {
  if (!value) return html`<span class="faint">–</span>`;
  const text = isShort ? format.shortId(value) : value;
  const shown = href
    ? html`<a href="${href}" title="${value}">${text}</a>`
    : html`<span title="${isShort ? value : null}">${text}</span>`;
  return html`<span class="id">${shown}<tenure-copy value="${value}" label="${label}"></tenure-copy></span>`;
}

/** @param {1 | 2 | 3 | number} kind */
export const kind = (kind) => html`<span class="kind kind-${kind}" title="Kind ${kind}">${kind}</span>`;

/** @param {unknown} text @param {"good" | "warn" | "bad" | "quiet"} [toneName] */
export const badge = (text, toneName = "quiet") => html`<span class="badge ${toneName}">${text}</span>`;

/** The state of a session, and the reason of its end. @param {import("../core/types.js").Session} session */
export function state(session) {
  if (session.isActive) return html`<span class="badge good">${session.state}</span>`;
  const reason = session.closeReason ?? "closed";
  return html`<span class="badge ${tone(reason)}" title="${format.REASONS[reason] ?? reason}">${reason}</span>`;
}

/** @param {string} reason */
export function tone(reason) {
  if (reason === "TERMINATED" || reason === "FAILED" || reason === "EVICTED") return "bad";
  return reason === "LEASE_EXPIRED" || reason === "IDLE_TIMEOUT" || reason === "DISCONNECTED" ? "warn" : "quiet";
}

/** If the holder has not renewed a lease for this share of the lease's duration, the holder is shown as silent. */
const SILENT_SHARE = 0.45;

/** Whether the holder of a lease is late with a renewal. @param {import("../core/types.js").Lease} lease */
export function isSilent({ held, renewedAt, expiresAt }) {
  const renewed = Date.parse(renewedAt);
  return held && serverNow() - renewed > (Date.parse(expiresAt) - renewed) * SILENT_SHARE;
}

/** A message about an error of a request, with the request id if the service responded. @param {unknown} error */
export function problem(error) {
  if (!(error instanceof ApiError)) {
    return html`<div class="problem" role="alert">
      <p><strong>The service does not answer.</strong> The request may or may not have taken effect.</p>
    </div>`;
  }
  const fields = error.errors.map(({ field, message }) => html`<li><code>${field}</code> ${message}</li>`);
  return html`<div class="problem" role="alert">
    <p><strong>${sentence(error.detail)}</strong></p>
    ${fields.length === 0 ? "" : html`<ul>${fields}</ul>`}
    <p class="small">
      ${error.status} <code>${error.code}</code>
      ${error.requestId === null ? "" : html`· request ${id(error.requestId, { label: "request id", isShort: false })}`}
    </p>
  </div>`;
}

/** The detail of a problem as a sentence. @param {string} text */
export function sentence(text) {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}

/**
 * What a page shows instead of an empty list.
 * @param {string} title Says that the list is empty.
 * @param {unknown} text Says why the list is empty, or what to do.
 * @param {string} [command] A command that the user can copy.
 */
export const empty = (title, text, command) => html`
  <div class="empty">
    <p><strong>${title}</strong></p>
    <p>${text}</p>
    ${command === undefined
      ? ""
      : html`<p class="command"><code>${command}</code><tenure-copy value="${command}" label="command"></tenure-copy></p>`}
  </div>
`;

/** What a page shows until its first data has arrived. @param {string} [text] */
export const loading = (text = "Loading…") => html`<p class="loading" role="status">${text}</p>`;

/**
 * The content of a watch: its data as a template, if it has data; otherwise the error of its request (4xx), or a text
 * which says that the page is loading or is waiting for the service.
 * @template T
 * @param {import("../core/live.js").Watch<T>} watch
 * @param {(data: T) => unknown} content
 */
export function shown(watch, content) {
  if (watch.data !== null) return html`<div class="${watch.isStale ? "is-stale" : ""}">${content(watch.data)}</div>`;
  if (watch.error instanceof ApiError && watch.error.status < 500) return problem(watch.error);
  return watch.error === null ? loading() : html`<p class="loading">Waiting for the service…</p>`;
}

/**
 * A figure: a label, a value and a note. The value is usually an exact number.
 * @param {string} label
 * @param {unknown} value
 * @param {unknown} [note]
 * @param {{href?: string, tone?: string, isLong?: boolean}} [options] `isLong`: a number that may have many digits.
 */
export const figure = (label, value, note = "", { href, tone: toneName = "", isLong = false } = {}) => html`
  <div class="figure ${toneName} ${isLong ? "is-long" : ""}">
    <dt>${href === undefined ? label : html`<a href="${href}">${label}</a>`}</dt>
    <dd class="value">${value}</dd>
    <dd class="note">${note}</dd>
  </div>
`;

/**
 * A section with a heading.
 * @param {string} title
 * @param {unknown} content
 * @param {{note?: unknown, actions?: unknown, className?: string}} [options]
 */
export const section = (title, content, { note = "", actions = "", className = "" } = {}) => html`
  <section class="panel ${className}" aria-label="${title}">
    <div class="panel-head">
      <h2>${title}</h2>
      <span class="note">${note}</span>
      <span class="actions">${actions}</span>
    </div>
    ${content}
  </section>
`;

/**
 * @typedef {{label: unknown, className: string}} Column Class `number` aligns the column to the right; `optional`
 *   hides it on narrow screens. The cells of the column need the same class.
 */

/** @param {string | import("../core/template.js").Template | Column} column */
function heading(column) {
  if (typeof column === "string" || column instanceof Template) return html`<th scope="col">${column}</th>`;
  return html`<th scope="col" class="${column.className}">${column.label}</th>`;
}

/**
 * A table. On narrow screens the table scrolls sideways, and the page does not. Rows are templates with one `<tr>`
 * each, usually `keyed`, so that they keep their places while the table is in use.
 * @param {string} caption For screen readers.
 * @param {(string | import("../core/template.js").Template | Column)[]} columns Each becomes a `<th scope="col">`.
 * @param {unknown[]} rows
 */
export const table = (caption, columns, rows) =>
  html`<tenure-table .caption=${caption} .headings=${columns.map(heading)} .rows=${rows}></tenure-table>`;

/**
 * A choice of few values, as a group of buttons of which one is pressed.
 * @param {string} label
 * @param {{value: string, label: string}[]} choices
 * @param {string} chosen
 * @param {(value: string) => void} choose
 */
export const choice = (label, choices, chosen, choose) => html`
  <div class="choice" role="group" aria-label="${label}">
    ${choices.map(
      ({ value, label: text }) =>
        html`<button type="button" aria-pressed="${value === chosen}" @click=${() => choose(value)}>${text}</button>`,
    )}
  </div>
`;
