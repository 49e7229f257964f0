// @ts-check
/** Usage: sums over any span, and the windows as they were billed. */

import { part } from "../core/api.js";
import { serverNow } from "../core/clock.js";
import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { LAG_MS, lateness } from "../core/windows.js";
import { ago, badge, choice, empty, figure, instant, section, shown, table } from "../parts/bits.js";
import "../parts/charts/bars.js";
import { deliveredUntil } from "../parts/delivered.js";
import { filterFields } from "../parts/filters.js";
import { pager } from "../parts/pager.js";
import { spanFields, spanOf } from "../parts/span.js";
import { USAGES } from "./deliveries.js";
import { exportUsage, KEYS, retryUsage, sendWindows } from "./usage-dialogs.js";

const GROUPS = 100;
const WINDOWS = 30;
const DEFAULT_SPAN = "30d";
const BILLABLE = ["tenant", "capacity", "user"];

/**
 * @typedef {{usage: string, sessions: number, tenantObjectId?: string, capacityId?: string, userObjectId?: string, sessionKind?: number}} Group
 * @typedef {{from: string, to: string, finalUntil: string, groups: Group[], nextCursor: string | null}} Sums
 * @typedef {Omit<import("../core/types.js").UsageWindow, "usage"> & {usage: string | null}} Window
 * @typedef {import("./usage-dialogs.js").GroupBy} GroupBy
 */
/** @template T @typedef {import("../core/live.js").Watch<T>} Watch */

export class UsagePage {
  static path = "usage";
  static title = "Usage";
  static nav = { label: "Usage", order: 40, needs: /** @type {import("../core/types.js").Role[]} */ (["reader", "operator"]) };

  #view;
  /** @type {Watch<Sums>} */
  #total;
  /** @type {Watch<Sums>} */
  #groups;
  /** @type {Watch<{windows: Window[], nextCursor: string | null}> | null} */
  #windows = null;
  /** @type {Watch<{counts: import("../core/types.js").SubmissionCount[]}> | null} */
  #counts = null;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#total = view.watch(() => ({ path: "usage", query: { ...this.#query(), quick: "true" }, exact: true }), 15_000);
    this.#groups = view.watch(
      () => ({
        path: "usage",
        query: { ...this.#query(), groupBy: this.#groupBy(), limit: GROUPS, cursor: view.value("cursor"), quick: "true" },
        exact: true,
      }),
      15_000,
    );
    if (view.seesInstallation) {
      this.#windows = view.watch(
        () => ({ path: "usage/windows", query: { limit: WINDOWS, cursor: view.value("windows") }, exact: true }),
        5_000,
      );
      this.#counts = view.watch(() => "submissions/counts", 10_000);
    }
  }

  /** @returns {GroupBy} */
  #groupBy() {
    const chosen = this.#view.value("groupBy", "tenant");
    return chosen in KEYS ? /** @type {GroupBy} */ (chosen) : "tenant";
  }

  #query() {
    const filters = Object.fromEntries(BILLABLE.map((name) => [name, this.#view.value(name)]));
    return { ...spanOf(this.#view, DEFAULT_SPAN), ...filters };
  }

  render() {
    return html`
      <div class="page-head">
        <h1>Usage</h1>
        <span class="actions">
          <button type="button" @click=${() => exportUsage(this.#query(), this.#groupBy())}>Export CSV</button>
          ${this.#windows !== null && this.#view.may("operator") ? this.#actions() : ""}
        </span>
      </div>
      ${this.#figures()}
      <div class="filters" role="search" aria-label="Choose usage">
        ${spanFields(this.#view, DEFAULT_SPAN, () => this.#reload())}
        ${filterFields(
          [
            ...(this.#view.me.tenantObjectId === null ? [{ name: "tenant", label: "Tenant", isId: true }] : []),
            { name: "capacity", label: "Capacity", isId: true },
            { name: "user", label: "User", isId: true },
          ],
          (name) => this.#view.value(name),
          (changes) => this.#change(changes),
        )}
      </div>
      ${section("Usage in the span", shown(this.#groups, (data) => this.#bars(data)), {
        note: this.#note(),
        actions: choice(
          "Sum by",
          Object.keys(KEYS).map((value) => ({ value, label: `By ${value}` })),
          this.#groupBy(),
          (groupBy) => this.#change({ groupBy: groupBy === "tenant" ? "" : groupBy }),
        ),
      })}
      ${this.#windows === null ? "" : this.#windowList(this.#windows)}
    `;
  }

  #actions() {
    const failed = this.#counted("failed");
    const waiting = this.#counted("pending");
    return html`
      ${failed + waiting === 0
        ? ""
        : html`<button type="button" class="primary" @click=${() => retryUsage({ failed, waiting }, () => this.#reload())}>Retry deliveries…</button>`}
      <button type="button" class="plain" @click=${() => sendWindows(() => this.#reload())}>Send windows never sent…</button>
    `;
  }

  /** How many submissions of usage are in a state. @param {string} state */
  #counted(state) {
    return this.#counts?.data?.counts.find((each) => each.gateway === USAGES && each.state === state)?.count ?? 0;
  }

  #figures() {
    const total = this.#total.data;
    const sum = total?.groups[0];
    const windows = (this.#view.value("windows") === "" ? this.#windows?.data?.windows : undefined) ?? [];
    const newest = windows[0];
    const failed = this.#counted("failed");
    const waiting = this.#counted("pending");
    const lag = newest === undefined ? 0 : serverNow() - Date.parse(newest.endAt);
    return html`<dl class="figures">
      ${figure("Usage", total ? format.decimal(sum?.usage ?? "0") : "–", total ? `${format.dateTime(total.from)} to ${format.dateTime(total.to)}` : "", { isLong: true })}
      ${figure("Sessions", total ? format.number(sum?.sessions ?? 0) : "–", "live at some time in the span")}
      ${newest === undefined ? "" : figure("Computed until", format.time(newest.endAt), deliveredUntil(windows), { tone: lag > LAG_MS ? "warn" : "" })}
      ${this.#counts?.data
        ? figure(
            "Chunks not delivered",
            format.number(failed + waiting),
            failed > 0 ? `${format.number(failed)} failed: retry them` : waiting > 0 ? "Tenure sends them until they are accepted" : "every chunk that was sent was accepted",
            { tone: failed > 0 ? "bad" : waiting > 0 ? lateness(windows) : "", href: this.#view.href(`deliveries?gateway=${USAGES}${failed > 0 ? "&state=failed" : "&state=pending"}`) },
          )
        : ""}
    </dl>`;
  }

  #note() {
    const data = this.#groups.data;
    if (data === null) return "";
    const until = endsEarly(data, spanOf(this.#view, DEFAULT_SPAN))
      ? html`summed from ${instant(data.from)} to ${instant(data.to)}, a full hour; the export has the whole span`
      : html`final until ${instant(data.finalUntil)}`;
    const isPart = this.#view.value("cursor") !== "" || data.nextCursor !== null;
    const order = isPart ? "the largest of this page first; pages are ordered by id" : "largest first";
    return html`a usage of 1 is 30 days at factor 1; ${until}; ${order}`;
  }

  /** @param {Sums} data */
  #bars({ groups, nextCursor }) {
    if (groups.length === 0) {
      return empty(
        "Nothing was used in this span.",
        "Usage begins when a session is opened. Choose a longer span, or start a hundred simulated users:",
        "tenure demo",
      );
    }
    const groupBy = this.#groupBy();
    const ordered = [...groups].sort((one, other) => Number(other.usage) - Number(one.usage));
    return html`
      <tenure-bars
        .label=${`Usage by ${groupBy}`}
        .items=${ordered.map((group) => ({
          label: this.#label(groupBy, group),
          value: Number(group.usage),
          text: format.decimal(group.usage),
          note: format.counted(group.sessions, "session"),
          tone: groupBy === "kind" ? String(group.sessionKind) : "1",
          href: this.#linkOf(groupBy, group),
        }))}
      ></tenure-bars>
      ${pager(this.#view, this.#groups, nextCursor)}
    `;
  }

  /** @param {GroupBy} groupBy @param {Group} group */
  #label(groupBy, group) {
    const key = String(group[KEYS[groupBy]] ?? "");
    return groupBy === "kind" ? `Kind ${key}` : html`<span class="mono" title="${key}">${format.shortId(key)}</span>`;
  }

  /**
   * The link of a bar: the usage of a tenant by capacity, of a capacity by user, or of a user by kind. The bar of a kind
   * has no link.
   * @param {GroupBy} groupBy
   * @param {Group} group
   */
  #linkOf(groupBy, group) {
    if (groupBy === "kind") return undefined;
    const query = new URLSearchParams(this.#view.query);
    query.delete("cursor");
    query.set(groupBy, String(group[KEYS[groupBy]]));
    query.set("groupBy", groupBy === "tenant" ? "capacity" : groupBy === "capacity" ? "user" : "kind");
    return this.#view.href(`usage?${query}`);
  }

  /** @param {Watch<{windows: Window[], nextCursor: string | null}>} windows */
  #windowList(windows) {
    return section(
      "Windows as they were billed",
      shown(windows, (data) => {
        if (data.windows.length === 0) return empty("No window yet.", "The job emit-usage cuts the first window within a minute of the first start. To run the job now:", "tenure jobs run emit-usage");
        return html`
          ${table(
            "Windows",
            ["Window", "From (UTC)", { label: "To (UTC)", className: "optional" }, { label: "Sessions", className: "optional number" }, { label: "Usage", className: "number" }, "Delivery"],
            data.windows.map((each) =>
              keyed(
                each.windowId,
                html`<tr>
                  <th scope="row"><a href="${this.#view.href(`usage/windows/${part(each.windowId)}`)}">${each.windowId}</a></th>
                  <td>${instant(each.startAt)}</td>
                  <td class="optional">${instant(each.endAt)}</td>
                  <td class="optional number">${format.number(each.sessions)}</td>
                  <td class="number">${format.decimal(each.usage)}</td>
                  <td>${delivery(each)}</td>
                </tr>`,
              ),
            ),
          )}
          ${pager(this.#view, windows, data.nextCursor, "windows")}
        `;
      }),
      { note: "newest first; each window links to its chunks and their attempts" },
    );
  }

  /** @param {Record<string, string>} changes */
  #change(changes) {
    this.#view.setQuery({ ...changes, cursor: "" });
    this.#reload();
  }

  #reload() {
    this.#total.reload();
    this.#groups.reload();
    this.#counts?.reload();
    this.#windows?.reload();
  }
}

/**
 * Whether a quick sum ends before the requested end and before the last cut, because too many sessions would have to be
 * read for the rest of the span.
 * @param {Sums} sums
 * @param {import("../parts/span.js").Span} asked
 */
function endsEarly({ to, finalUntil }, asked) {
  const wanted = asked.to === "" ? Infinity : Date.parse(asked.to);
  return Date.parse(to) < Math.min(wanted, Date.parse(finalUntil));
}

/** @param {Pick<Window, "delivery" | "deliveredAt">} window */
export function delivery({ delivery: found, deliveredAt }) {
  if (found === "delivered") return html`${badge("delivered", "good")} <span class="faint">${ago(deliveredAt)}</span>`;
  if (found === "waiting") return badge("waits", "warn");
  return found === "notSent" ? badge("never sent", "bad") : html`<span class="faint">nothing to send</span>`;
}

