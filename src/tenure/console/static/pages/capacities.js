// @ts-check
/** The capacities: how many seats each has, and how many are taken. */

import { part } from "../core/api.js";
import * as format from "../core/format.js";
import { go } from "../core/router.js";
import { html, keyed } from "../core/template.js";
import { badge, choice, empty, figure, id, section, shown, table } from "../parts/bits.js";
import { filterFields } from "../parts/filters.js";
import { fullness, meter } from "../parts/meter.js";
import { pager } from "../parts/pager.js";
import { setCapacity } from "./capacity-dialog.js";

const PAGE = 200;
const EVERY_MS = 5_000;

/** @typedef {import("../core/types.js").Capacity} Capacity */

/** The share of the seats that is taken: 0 if there is no limit, 1 if the limit is 0. @param {Capacity} capacity */
export function shareTaken({ activeSessions, maxSessions }) {
  if (maxSessions === null) return 0;
  return maxSessions === 0 ? 1 : activeSessions / maxSessions;
}

export class CapacitiesPage {
  static path = "capacities";
  static title = "Capacities";
  static nav = { label: "Capacities", order: 30, needs: /** @type {import("../core/types.js").Role[]} */ (["reader", "operator"]) };

  #view;
  /** @type {import("../core/live.js").Watch<{capacities: Capacity[], nextCursor: string | null}>} */
  #capacities;
  #isLeft = false;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#capacities = view.watch(
      () => ({ path: "capacities", query: { tenant: view.value("tenant"), cursor: view.value("cursor"), limit: PAGE } }),
      EVERY_MS,
    );
  }

  render() {
    return html`
      <div class="page-head">
        <h1>Capacities</h1>
        <span class="actions">
          ${this.#view.may("operator")
            ? html`<button type="button" class="primary" @click=${() => this.#set()}>Set a capacity</button>`
            : ""}
        </span>
      </div>
      ${this.#figures()}
      <div class="filters" role="search" aria-label="Find capacities">
        ${filterFields(
          [
            { name: "capacity", label: "Capacity", isId: true },
            ...(this.#view.me.tenantObjectId === null ? [{ name: "tenant", label: "Tenant", isId: true }] : []),
          ],
          (name) => this.#view.value(name),
          (changes) => this.#filter(changes),
        )}
        ${choice(
          "Order",
          [
            { value: "fullest", label: "Fullest first" },
            { value: "id", label: "By id" },
          ],
          this.#view.value("order", "fullest"),
          (order) => this.#view.setQuery({ order: order === "id" ? "id" : "" }, { replace: true }),
        )}
      </div>
      ${section("Capacities with settings", shown(this.#capacities, (data) => this.#table(data)), { note: this.#note() })}
    `;
  }

  #isPart() {
    return this.#view.value("cursor") !== "" || Boolean(this.#capacities.data?.nextCursor);
  }

  #figures() {
    const found = this.#capacities.data?.capacities;
    if (found === undefined || found.length === 0) return "";
    const limited = found.filter(({ maxSessions }) => maxSessions !== null);
    const full = limited.filter((each) => shareTaken(each) >= 1);
    const nearly = limited.filter((each) => fullness(shareTaken(each)) === "warn");
    const seats = limited.reduce((sum, { maxSessions }) => sum + (maxSessions ?? 0), 0);
    const taken = limited.reduce((sum, { activeSessions }) => sum + activeSessions, 0);
    const where = this.#isPart() ? "on this page" : "";
    return html`<dl class="figures">
      ${figure("Capacities", format.number(found.length), this.#isPart() ? "on this page; there are more" : `${format.number(limited.length)} with a limit`)}
      ${figure("Full", format.number(full.length), where || (full.length === 0 ? "every capacity has a free seat" : "an open request is refused, or evicts a session"), {
        tone: full.length > 0 ? "bad" : "",
      })}
      ${figure("Nearly full", format.number(nearly.length), where || "at least 90 % taken", { tone: nearly.length > 0 ? "warn" : "" })}
      ${figure("Seats taken", format.number(taken), `of ${format.number(seats)}, on capacities with a limit`)}
    </dl>`;
  }

  #note() {
    return this.#isPart() && this.#view.value("order") !== "id" ? "the fullest of this page first; pages are ordered by id" : "";
  }

  /** @param {{capacities: Capacity[], nextCursor: string | null}} data */
  #table({ capacities, nextCursor }) {
    if (capacities.length === 0) return this.#nothing();
    const ordered =
      this.#view.value("order") === "id" ? capacities : [...capacities].sort((one, other) => shareTaken(other) - shareTaken(one));
    return html`
      ${table(
        "Capacities",
        ["Capacity", "Seats taken", "State", { label: "When full", className: "optional" }, { label: "Tenant", className: "optional" }],
        ordered.map((each) => keyed(each.capacityId, this.#row(each))),
      )}
      ${pager(this.#view, this.#capacities, nextCursor)}
    `;
  }

  /** @param {Capacity} capacity */
  #row(capacity) {
    const { capacityId, maxSessions, activeSessions, tenantObjectId } = capacity;
    const href = this.#view.href(`capacities/${part(capacityId)}`);
    return html`<tr>
      <th scope="row">${id(capacityId, { href, label: "capacity" })}</th>
      <td>
        <span class="taken">${maxSessions === null ? "" : meter(shareTaken(capacity))}
          <span><strong>${format.number(activeSessions)}</strong> ${maxSessions === null ? "" : `of ${format.number(maxSessions)}`}</span></span>
      </td>
      <td>${fullnessBadge(capacity)}</td>
      <td class="optional">${maxSessions === null ? html`<span class="faint">–</span>` : whenFull(capacity)}</td>
      <td class="optional">${tenantObjectId === null ? html`<span class="faint">any</span>` : id(tenantObjectId, { label: "tenant" })}</td>
    </tr>`;
  }

  #nothing() {
    if (this.#view.value("tenant") !== "") {
      return empty("No capacity is bound to this tenant.", "A capacity that is bound to no tenant takes sessions of every tenant.");
    }
    return empty(
      "No capacity has settings.",
      "Sessions can be opened on any capacity, without a limit. To set a limit of 20 seats:",
      "tenure capacities set CAPACITY --seats 20",
    );
  }

  /** @param {Record<string, string>} changes */
  #filter({ capacity, ...changes }) {
    if (this.#isLeft) return;
    if (capacity) {
      // The field reports its change once more when it is removed with the page.
      this.#isLeft = true;
      go(`capacities/${part(capacity.trim().toLowerCase())}`);
      return;
    }
    if (changes.tenant === undefined) return;
    this.#view.setQuery({ ...changes, cursor: "" });
    this.#capacities.reload();
  }

  async #set() {
    const changed = await setCapacity(this.#view, null);
    if (changed !== null) go(`capacities/${part(changed.capacityId)}`);
  }
}

/** @param {Capacity} capacity */
export function fullnessBadge(capacity) {
  if (capacity.maxSessions === null) return badge("no limit");
  const share = shareTaken(capacity);
  if (capacity.activeSessions > capacity.maxSessions) return badge("over its limit", "bad");
  if (share >= 1) return badge(capacity.maxSessions === 0 ? "closed" : "full", "bad");
  return share >= 0.9 ? badge("nearly full", "warn") : badge("free seats", "good");
}

/** @param {Capacity} capacity */
export const whenFull = (capacity) => (capacity.whenFull === "reject" ? "refuses" : "evicts the oldest");
