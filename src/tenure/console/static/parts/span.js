// @ts-check
/** A span of time in the address of a page: a name such as `24h`, or two instants. Spans are in UTC, and names are relative
 * to the time of the server. */

import { serverNow } from "../core/clock.js";
import { html } from "../core/template.js";
import { notify } from "./notice.js";

const HOUR_MS = 3_600_000;
const DAY_MS = 86_400_000;

/**
 * @typedef {{from: string, to: string}} Span Instants as the API takes them. A `from` or `to` that is "" does not limit the span.
 * @typedef {{value: string, label: string}} Named
 */

/** @type {Record<string, {label: string, of: (now: Date) => Span}>} */
const NAMED = {
  "1h": { label: "last hour", of: (now) => since(now.getTime() - HOUR_MS) },
  "24h": { label: "last 24 hours", of: (now) => since(now.getTime() - DAY_MS) },
  "7d": { label: "last 7 days", of: (now) => since(now.getTime() - 7 * DAY_MS) },
  "30d": { label: "last 30 days", of: (now) => since(now.getTime() - 30 * DAY_MS) },
  month: { label: "this month", of: (now) => since(monthStart(now, 0)) },
  "last-month": {
    label: "last month",
    of: (now) => ({ from: new Date(monthStart(now, -1)).toISOString(), to: new Date(monthStart(now, 0)).toISOString() }),
  },
};

/** @param {number} from @returns {Span} */
const since = (from) => ({ from: new Date(from).toISOString(), to: "" });

/** @param {Date} now @param {number} months */
const monthStart = (now, months) => Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + months, 1);

/**
 * The span that the address names.
 * @param {import("../core/view.js").View} view
 * @param {string} otherwise The name of the span if the address names none; "": any time.
 * @returns {Span}
 */
export function spanOf(view, otherwise) {
  if (isOwn(view)) return { from: view.value("from"), to: view.value("to") };
  return NAMED[view.value("span", otherwise)]?.of(new Date(serverNow())) ?? { from: "", to: "" };
}

/** @param {import("../core/view.js").View} view */
const isOwn = (view) => view.value("span") === "own" || view.value("from") !== "" || view.value("to") !== "";

/**
 * The fields that choose a span.
 * @param {import("../core/view.js").View} view
 * @param {string} otherwise The name of the span that applies until one is chosen; "": any time.
 * @param {() => void} changed
 */
export function spanFields(view, otherwise, changed) {
  const own = isOwn(view);
  const choose = (/** @type {string} */ value) => {
    const span = spanOf(view, otherwise);
    view.setQuery(
      value === "own"
        ? { span: "own", from: span.from, to: span.to, cursor: "" }
        : { span: value === otherwise ? "" : value, from: "", to: "", cursor: "" },
    );
    changed();
  };
  const take = (/** @type {string} */ name) => (/** @type {Event} */ event) => {
    const field = /** @type {HTMLInputElement} */ (event.target);
    if (field.value === "" && field.validity.badInput) return;
    const next = { from: view.value("from"), to: view.value("to"), [name]: inUtc(field.value) };
    if (next.from !== "" && next.to !== "" && Date.parse(next.from) >= Date.parse(next.to)) {
      field.setAttribute("aria-invalid", "true");
      notify("The span must begin before it ends.", "bad");
      return;
    }
    field.removeAttribute("aria-invalid");
    view.setQuery({ ...next, span: "own", cursor: "" });
    changed();
  };
  const chosen = own ? "own" : view.value("span", otherwise);
  return html`
    <label class="field">
      <span>Span</span>
      <select name="span" .value=${chosen} @change=${(/** @type {Event} */ event) => choose(/** @type {HTMLSelectElement} */ (event.target).value)}>
        ${otherwise === "" ? html`<option value="" ?selected=${chosen === ""}>any time</option>` : ""}
        ${Object.entries(NAMED).map(([value, { label }]) => html`<option value="${value}" ?selected=${value === chosen}>${label}</option>`)}
        <option value="own" ?selected=${own}>from … to …</option>
      </select>
    </label>
    ${own
      ? html`<label class="field"><span>From (UTC)</span>
            <input type="datetime-local" name="from" step="1" .value=${local(view.value("from"))} @change=${take("from")}></label>
          <label class="field"><span>To (UTC)</span>
            <input type="datetime-local" name="to" step="1" .value=${local(view.value("to"))} @change=${take("to")}></label>`
      : ""}
  `;
}

/** The instant in the value of a field. The value is in UTC, and browsers omit its seconds if they are zero. @param {string} value */
export const inUtc = (value) => (value === "" ? "" : new Date(`${value}Z`).toISOString());

/** The value of a field for an instant, in UTC. @param {string} instant */
export function local(instant) {
  const at = Date.parse(instant);
  return Number.isNaN(at) ? "" : new Date(at).toISOString().slice(0, 19);
}
