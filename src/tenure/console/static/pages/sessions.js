// @ts-check
/**
 * The table of sessions. The filters are part of the address, and the rows follow the events. An operator can end the
 * selected sessions, or all that match.
 */

import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { ago, choice, countdown, empty, id, instant, kind, section, shown, state, table } from "../parts/bits.js";
import { endSessions } from "../parts/bulk-end.js";
import { filterFields } from "../parts/filters.js";

const PAGE = 50;
/** If more rows than this are new, none of them is marked. */
const NEW_MAX = 10;
const REASONS = Object.keys(format.REASONS);
/** The states that the filter `state` offers, for each choice of live, ended or all sessions. */
const STATES = { live: ["created", "active"], ended: ["closing", "closed"], all: ["created", "active", "closing", "closed"] };
/** The filters, as they are named in the address of the page and in `GET /sessions`. */
const FILTERS = ["active", "state", "kind", "closeReason", "user", "tenant", "capacity"];
/** The filters that `POST /sessions/end` accepts. */
const LIVE_FILTERS = ["state", "kind", "user", "tenant", "capacity"];

/**
 * @typedef {import("../core/types.js").Session} Session
 * @typedef {{sessions: Session[], count: number, nextCursor: string | null, exact: boolean}} SessionList
 */

export class SessionsPage {
  static path = "sessions";
  static title = "Sessions";
  static nav = { label: "Sessions", order: 20 };

  #view;
  /** @type {import("../core/live.js").Watch<SessionList>} */
  #sessions;
  /** @type {import("../core/live.js").Watch<{count: number, exact: boolean}>} */
  #count;
  /** The ids in the last response. Sessions with other ids are marked as new. @type {Set<string> | null} */
  #known = null;
  /** @type {Set<string>} */
  #new = new Set();
  /** @type {Set<string>} */
  #chosen = new Set();
  /** Whether the user has opened the fields of the filters, which a narrow screen hides at first. */
  #isOpen = false;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#sessions = view.watch(
      () => ({ path: "sessions", query: { ...this.#filters(), order: view.value("order"), limit: PAGE, cursor: view.value("cursor") } }),
      10_000,
      (event) => this.#concerns(event),
    );
    this.#sessions.addEventListener("change", () => this.#learn());
    this.#count = view.watch(() => ({ path: "sessions/count", query: this.#filters() }), 5_000);
  }

  get #isByLapse() {
    return this.#view.value("order") === "lapse";
  }

  /** @returns {Record<string, string>} */
  #filters() {
    const found = FILTERS.map((name) => [name, this.#view.value(name)]).filter(([, value]) => value !== "");
    return { ...Object.fromEntries(found), ...(this.#isByLapse ? { active: "true" } : {}) };
  }

  get #hasFilters() {
    return FILTERS.some((name) => this.#view.value(name) !== "");
  }

  /** Whether one of the filters other than `active` is set. Each of them has its own field. */
  get #hasFields() {
    return FILTERS.some((name) => name !== "active" && this.#view.value(name) !== "");
  }

  /** @param {import("../core/types.js").SessionEvent} event */
  #concerns(event) {
    const { user, tenant, capacity } = this.#filters();
    const isMine = (/** @type {string | undefined} */ wanted, /** @type {string} */ found) => !wanted || wanted.toLowerCase() === found;
    return isMine(user, event.userObjectId) && isMine(tenant, event.tenantObjectId) && isMine(capacity, event.capacityId);
  }

  #learn() {
    const sessions = this.#sessions.data?.sessions ?? [];
    const found = new Set(sessions.map(({ sessionId }) => sessionId));
    const known = this.#known;
    const fresh = known === null ? [] : [...found].filter((each) => !known.has(each));
    this.#new = new Set(fresh.length > NEW_MAX ? [] : fresh);
    this.#known = found;
    // Unselect the sessions that have ended, and those that are no longer on this page.
    const live = new Set(sessions.filter(({ isActive }) => isActive).map(({ sessionId }) => sessionId));
    for (const each of this.#chosen) if (!live.has(each)) this.#chosen.delete(each);
  }

  /** @param {Record<string, string>} changes */
  #change(changes) {
    this.#view.setQuery({ ...changes, cursor: "" });
    this.#known = null;
    this.#chosen.clear();
    this.#sessions.reload();
    this.#count.reload();
  }

  render() {
    const value = (/** @type {string} */ name) => this.#view.value(name);
    const life = value("active") === "false" ? "ended" : value("active") === "true" || this.#isByLapse ? "live" : "all";
    const mayOpen = this.#view.may("client", "operator");
    return html`
      <div class="page-head">
        <h1>Sessions</h1>
        ${mayOpen ? html`<div class="actions"><a class="button" href="${this.#view.href("open")}">Open and hold one…</a></div>` : ""}
      </div>
      <div class="filters collapses ${this.#isOpen || this.#hasFields ? "is-open" : ""}" role="search" aria-label="Filter sessions">
        ${choice(
          "Which sessions",
          [
            { value: "all", label: "All" },
            { value: "live", label: "Live" },
            { value: "ended", label: "Ended" },
          ],
          life,
          (chosen) => this.#changeLife(chosen),
        )}
        ${choice(
          "Order",
          [
            { value: "newest", label: "Newest first" },
            { value: "lapse", label: "Next to lapse" },
          ],
          this.#isByLapse ? "lapse" : "newest",
          (order) => this.#change(order === "lapse" ? { order, active: "", closeReason: "" } : { order: "" }),
        )}
        ${filterFields(
          [
            { name: "state", label: "State", options: [...new Set([...STATES[life], value("state")])].filter((each) => each !== "") },
            { name: "kind", label: "Kind", options: ["1", "2", "3"] },
            ...(life === "live" ? [] : [{ name: "closeReason", label: "Reason of the end", options: REASONS }]),
            { name: "user", label: "User", isId: true },
            { name: "tenant", label: "Tenant", isId: true },
            { name: "capacity", label: "Capacity", isId: true },
          ],
          value,
          (changes) => this.#change(changes),
        )}
        ${this.#isOpen || this.#hasFields
          ? ""
          : html`<button type="button" class="plain only-narrow" @click=${() => ((this.#isOpen = true), this.#view.update())}>Filter…</button>`}
        ${this.#hasFields
          ? html`<button type="button" class="plain" @click=${() => this.#change(Object.fromEntries(FILTERS.map((name) => [name, ""])))}>
              Clear filters
            </button>`
          : ""}
      </div>
      ${section("Sessions that match", shown(this.#sessions, (data) => this.#table(data)), {
        note: this.#note(),
        actions: this.#mayEndAll
          ? html`<button type="button" class="quiet-danger" @click=${() => void this.#endAll()}>End all that match…</button>`
          : "",
      })}
      ${this.#selection()}
    `;
  }

  /** @param {string} life */
  #changeLife(life) {
    const active = life === "all" ? "" : String(life === "live");
    const order = life === "live" && this.#isByLapse ? "lapse" : "";
    this.#change({ active, order, state: "", ...(life === "live" ? { closeReason: "" } : {}) });
  }

  get #mayEndAll() {
    const { active, closeReason, state: wanted } = this.#filters();
    return this.#view.may("operator") && active !== "false" && !closeReason && wanted !== "closed" && Boolean(this.#sessions.data?.sessions.some(({ isActive }) => isActive));
  }

  #note() {
    const count = this.#count.data;
    const inAll = count === null ? "" : `${count.exact ? "" : "at least "}${format.counted(count.count, "session")}`;
    if (this.#isByLapse && this.#sessions.data?.exact === false) {
      return `${inAll} · sessions with earlier deadlines may be missing; a filter by user, capacity or tenant can make the order exact`;
    }
    return inAll;
  }

  /** @param {SessionList} list */
  #table({ sessions, nextCursor }) {
    const isFirst = this.#view.value("cursor") === "";
    if (sessions.length === 0 && isFirst && nextCursor === null) return this.#nothing();
    const mayChoose = this.#view.may("operator");
    return html`
      ${table(
        "Sessions",
        [
          ...(mayChoose ? [{ label: this.#chooseAll(sessions), className: "choose" }] : []),
          "Session",
          { label: "User", className: "optional" },
          { label: "Capacity", className: "optional" },
          { label: "Tenant", className: "optional" },
          { label: "Kind", className: "optional" },
          "State",
          { label: "Started", className: "optional" },
          "Ends",
        ],
        sessions.map((session) => keyed(session.sessionId, this.#row(session, mayChoose))),
      )}
      <div class="pager">
        ${isFirst ? "" : html`<button type="button" @click=${() => this.#page("")}>First page</button>`}
        ${nextCursor === null
          ? html`<span>This is the last page.</span>`
          : html`<button type="button" @click=${() => this.#page(nextCursor)}>Next page</button>`}
        ${sessions.length === 0 ? html`<span>No session on this page matches the filters.</span>` : ""}
      </div>
    `;
  }

  /** @param {Session[]} sessions */
  #chooseAll(sessions) {
    const live = sessions.filter(({ isActive }) => isActive);
    const areAll = live.length > 0 && live.every(({ sessionId }) => this.#chosen.has(sessionId));
    return html`<input
      type="checkbox"
      aria-label="Select all live sessions on this page"
      .checked=${areAll}
      ?disabled=${live.length === 0}
      @change=${() => {
        if (areAll) this.#chosen.clear();
        else for (const { sessionId } of live) this.#chosen.add(sessionId);
        this.#view.update();
      }}
    >`;
  }

  /** @param {Session} session @param {boolean} mayChoose */
  #row(session, mayChoose) {
    const link = this.#view.href(`sessions/${session.sessionId}`);
    const capacity = this.#view.may("reader", "operator") ? `capacities/${session.capacityId}` : `sessions?capacity=${session.capacityId}`;
    const isChosen = this.#chosen.has(session.sessionId);
    return html`<tr class="${this.#new.has(session.sessionId) ? "is-new" : ""} ${isChosen ? "is-chosen" : ""}">
      ${mayChoose
        ? html`<td class="choose">
            <input
              type="checkbox"
              aria-label="Select session ${session.sessionId}"
              .checked=${isChosen}
              ?disabled=${!session.isActive}
              @change=${() => this.#choose(session.sessionId)}
            >
          </td>`
        : ""}
      <th scope="row">
        ${id(session.sessionId, { href: link, label: "session id" })}
        <span class="under only-narrow">user ${format.shortId(session.userObjectId)}</span>
      </th>
      <td class="optional">${id(session.userObjectId, { label: "user", href: this.#view.href(`sessions?user=${session.userObjectId}`) })}</td>
      <td class="optional">${id(session.capacityId, { label: "capacity", href: this.#view.href(capacity) })}</td>
      <td class="optional">${id(session.tenantObjectId, { label: "tenant", href: this.#view.href(`sessions?tenant=${session.tenantObjectId}`) })}</td>
      <td class="optional">${kind(session.sessionKind)}</td>
      <td>${state(session)}</td>
      <td class="optional">${ago(session.sessionStartUtc)}</td>
      <td>${session.isActive ? countdown(session.leaseExpiresAt) : instant(session.sessionEndUtc)}</td>
    </tr>`;
  }

  /** @param {string} sessionId */
  #choose(sessionId) {
    if (!this.#chosen.delete(sessionId)) this.#chosen.add(sessionId);
    this.#view.update();
  }

  #selection() {
    if (this.#chosen.size === 0) return "";
    return html`<div class="selection" role="region" aria-label="Selection">
      <span aria-live="polite"><strong>${format.counted(this.#chosen.size, "session")}</strong> selected</span>
      <span class="grow"></span>
      <button type="button" class="plain" @click=${() => (this.#chosen.clear(), this.#view.update())}>Select none</button>
      <button type="button" class="danger" @click=${() => void this.#endChosen()}>End selected…</button>
    </div>`;
  }

  async #endChosen() {
    await endSessions({ sessionIds: [...this.#chosen] }, [`${format.counted(this.#chosen.size, "session")} of this page`]);
    this.#chosen.clear();
    this.#reload();
  }

  async #endAll() {
    const filters = this.#filters();
    const found = LIVE_FILTERS.filter((name) => filters[name] !== undefined);
    const chosen = Object.fromEntries(found.map((name) => [name, name === "kind" ? Number(filters[name]) : filters[name]]));
    await endSessions(found.length === 0 ? { all: true } : chosen, found.map((name) => `${name} ${filters[name]}`));
    this.#reload();
  }

  #reload() {
    this.#view.update();
    void this.#sessions.load();
    void this.#count.load();
  }

  #nothing() {
    if (this.#hasFilters) {
      return empty("No session matches.", "Remove a filter, or enter an id in the field at the top, which also finds users, tenants and capacities.");
    }
    return empty(
      this.#isByLapse ? "No live session." : "No session yet.",
      "A client opens sessions with PUT /sessions. Open one by hand, or start a hundred simulated users:",
      "tenure demo",
    );
  }

  /** @param {string} cursor */
  #page(cursor) {
    this.#view.setQuery({ cursor });
    this.#known = null;
    this.#chosen.clear();
    this.#sessions.reload();
    scrollTo(0, 0);
  }
}
