// @ts-check
/** One capacity: who holds its seats, which session lapses next, and whether another user can open a session. */

import { ApiError, part, request } from "../core/api.js";
import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { ago, countdown, empty, figure, id, instant, kind, problem, section, shown, state, table } from "../parts/bits.js";
import { confirm } from "../parts/dialog.js";
import { meter } from "../parts/meter.js";
import { notify } from "../parts/notice.js";
import { fullnessBadge, shareTaken, whenFull } from "./capacities.js";
import { setCapacity } from "./capacity-dialog.js";

const HOLDERS = 100;

/**
 * @typedef {import("../core/types.js").Capacity} Capacity
 * @typedef {import("../core/types.js").Session} Session
 */

export class CapacityPage {
  static path = "capacities/:capacityId";
  static title = "Capacity";

  #view;
  #id;
  /** @type {import("../core/live.js").Watch<Capacity>} */
  #capacity;
  /** @type {import("../core/live.js").Watch<{sessions: Session[], nextCursor: string | null}>} */
  #holders;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#id = (view.params.capacityId ?? "").trim().toLowerCase();
    const isMine = (/** @type {import("../core/types.js").SessionEvent} */ event) => event.capacityId === this.#id;
    const isId = format.isUuid(this.#id);
    this.#capacity = view.watch(() => (isId ? `capacities/${part(this.#id)}` : null), 4_000, isMine);
    this.#holders = view.watch(
      () => (isId ? { path: "sessions", query: { capacity: this.#id, active: true, order: "lapse", limit: HOLDERS } } : null),
      5_000,
      isMine,
    );
    // A lapsed session holds no seat, but its event arrives only after the sweep. So load the number of taken seats
    // again whenever the sessions are loaded.
    this.#holders.addEventListener("change", () => this.#capacity.touch());
  }

  /**
   * The settings, or the defaults if the capacity has no settings, and the number of taken seats.
   * @returns {Capacity | null} Null until the service has returned the settings, or 404 because there are none.
   */
  #settings() {
    if (this.#capacity.data !== null && !this.#isUnset()) return this.#capacity.data;
    if (!this.#isUnset()) return null;
    const taken = this.#holders.data?.sessions.length ?? 0;
    return { capacityId: this.#id, maxSessions: null, whenFull: "reject", tenantObjectId: null, activeSessions: taken, createdAt: "", modifiedAt: "" };
  }

  #isUnset() {
    return this.#capacity.error instanceof ApiError && this.#capacity.error.status === 404;
  }

  render() {
    if (!format.isUuid(this.#id)) {
      return html`<div class="page-head"><h1>Capacity</h1></div>
        ${empty(`“${this.#id}” is not the id of a capacity.`, "Ids are UUIDs, such as f47ac10b-58cc-4372-a567-0e02b2c3d479.")}`;
    }
    const settings = this.#settings();
    const error = this.#capacity.error;
    return html`
      <div class="page-head">
        <h1>Capacity</h1>
        ${id(this.#id, { label: "capacity", isShort: false })}
        <span class="actions">${settings !== null && this.#view.may("operator") ? this.#actions(settings) : ""}</span>
      </div>
      ${settings === null
        ? error instanceof ApiError && error.status < 500
          ? problem(error)
          : html`<p class="loading" role="status">Loading…</p>`
        : html`${this.#figures(settings)} ${this.#verdict(settings)}`}
      ${section("Who holds the seats", shown(this.#holders, (data) => this.#table(data)), {
        note: this.#holders.data ? "sorted by deadline" : "",
        actions: html`<a href="${this.#view.href(`sessions?capacity=${part(this.#id)}`)}">All its sessions</a>`,
      })}
    `;
  }

  /** @param {Capacity} capacity */
  #actions(capacity) {
    return html`
      <button type="button" class="primary" @click=${() => this.#change(capacity)}>Change settings</button>
      ${this.#isUnset() ? "" : html`<button type="button" class="plain quiet-danger" @click=${() => this.#delete(capacity)}>Delete settings</button>`}
    `;
  }

  /** @param {Capacity} capacity */
  #figures(capacity) {
    const { maxSessions, activeSessions, tenantObjectId } = capacity;
    const share = shareTaken(capacity);
    const isMore = this.#isUnset() && Boolean(this.#holders.data?.nextCursor);
    return html`<dl class="figures">
      ${figure(
        "Seats taken",
        html`${format.number(activeSessions)}${isMore ? " or more" : ""}`,
        maxSessions === null ? "no limit" : html`${meter(share)} of ${format.number(maxSessions)}`,
        { tone: maxSessions !== null && share >= 1 ? "bad" : "" },
      )}
      ${figure("Free", maxSessions === null ? "any number" : format.number(Math.max(0, maxSessions - activeSessions)), fullnessBadge(capacity))}
      ${figure("Next to lapse", this.#nextToLapse(), "unless the session is kept alive")}
      ${figure("When full", maxSessions === null ? "–" : whenFull(capacity), "")}
      ${figure("Tenant", tenantObjectId === null ? "any" : id(tenantObjectId, { label: "tenant" }), tenantObjectId === null ? "bound to none" : "others are refused")}
    </dl>`;
  }

  #nextToLapse() {
    const next = this.#holders.data?.sessions.find(({ isActive }) => isActive);
    return next === undefined ? "–" : countdown(next.leaseExpiresAt);
  }

  /** What happens if another user opens a session now, and why. @param {Capacity} capacity */
  #verdict(capacity) {
    const { maxSessions, activeSessions, tenantObjectId } = capacity;
    const binding =
      tenantObjectId === null
        ? ""
        : html`<p>A session of any other tenant is refused with <code>403 CAPACITY_OF_ANOTHER_TENANT</code>, because the capacity is bound
            to tenant ${id(tenantObjectId, { label: "tenant" })}.</p>`;
    const [tone, answer] = this.#answer(maxSessions, activeSessions, capacity.whenFull);
    return html`<section class="callout ${tone}" aria-label="What happens to the next open request">${answer} ${binding}
      <p class="small">A user who already holds a seat gets the same session again, or an upgrade of it, even if no seat is free.</p></section>`;
  }

  /** @param {number | null} limit @param {number} taken @param {string} rule @returns {[string, unknown]} */
  #answer(limit, taken, rule) {
    const next = this.#holders.data?.sessions.find(({ isActive }) => isActive);
    if (limit === null) return ["good", html`<p><strong>The next user gets a seat.</strong> The capacity has no limit.</p>`];
    if (taken < limit) {
      const last = limit - taken === 1 ? "It is the last one." : `${format.number(limit - taken)} are free.`;
      return ["good", html`<p><strong>The next user gets a seat.</strong> ${last}</p>`];
    }
    if (limit === 0) {
      return ["bad", html`<p><strong>The next open request is refused</strong> with <code>429 SESSION_LIMIT</code>. The limit is 0, so there are no seats.</p>`];
    }
    const soonest =
      next === undefined
        ? ""
        : html`The next session lapses in ${countdown(next.leaseExpiresAt)}, at ${instant(next.leaseExpiresAt)}, unless user ${id(next.userObjectId, { label: "user" })} keeps session
            ${id(next.sessionId, { href: this.#view.href(`sessions/${part(next.sessionId)}`), label: "session id" })} alive.`;
    if (rule === "evictOldest") {
      return ["", html`<p><strong>The next user gets a seat, and another user loses theirs.</strong> All ${format.counted(limit, "seat")} are taken, and the rule
        is to end the session with the oldest activity. ${this.#oldest()}</p>`];
    }
    const over = taken > limit ? ` ${format.number(taken - limit + 1)} sessions have to end first.` : "";
    return ["bad", html`<p><strong>The next open request is refused</strong> with <code>429 SESSION_LIMIT</code>, because all ${format.counted(limit, "seat")} are
      taken.${over} ${soonest}</p>${this.#last()}`];
  }

  /** Who took the last seat, if all holders are known. */
  #last() {
    const data = this.#holders.data;
    if (data === null || data.nextCursor !== null) return "";
    const last = [...data.sessions].sort((one, other) => (one.sessionStartUtc > other.sessionStartUtc ? -1 : 1))[0];
    if (last === undefined) return "";
    return html`<p>The last seat was taken by user ${id(last.userObjectId, { label: "user" })}, ${ago(last.sessionStartUtc)}, with session
      ${id(last.sessionId, { href: this.#view.href(`sessions/${part(last.sessionId)}`), label: "session id" })}.</p>`;
  }

  /** Which session the next open request ends, if all holders are known. */
  #oldest() {
    const data = this.#holders.data;
    if (data === null || data.nextCursor !== null) return "";
    const oldest = [...data.sessions].sort((one, other) => (one.lastActivity < other.lastActivity ? -1 : 1))[0];
    if (oldest === undefined) return "";
    return html`At the moment, this is session ${id(oldest.sessionId, { href: this.#view.href(`sessions/${part(oldest.sessionId)}`), label: "session id" })} of user
      ${id(oldest.userObjectId, { label: "user" })}, last active ${ago(oldest.lastActivity)}.`;
  }

  /** @param {{sessions: Session[], nextCursor: string | null}} data */
  #table({ sessions, nextCursor }) {
    if (sessions.length === 0) return empty("No seat is taken.", "A client takes a seat when it opens a session on this capacity with PUT /sessions.");
    return html`
      ${table(
        "Sessions that hold seats",
        ["Lapses in", "Session", "User", { label: "Tenant", className: "optional" }, { label: "Kind", className: "optional" }, { label: "State", className: "optional" }, { label: "Seat since", className: "optional" }, { label: "Last activity", className: "optional" }],
        sessions.map((session) =>
          keyed(
            session.sessionId,
            html`<tr>
              <td>${countdown(session.leaseExpiresAt)}</td>
              <th scope="row">${id(session.sessionId, { href: this.#view.href(`sessions/${part(session.sessionId)}`), label: "session id" })}</th>
              <td>${id(session.userObjectId, { label: "user" })}</td>
              <td class="optional">${id(session.tenantObjectId, { label: "tenant" })}</td>
              <td class="optional">${kind(session.sessionKind)}</td>
              <td class="optional">${state(session)}</td>
              <td class="optional">${instant(session.sessionStartUtc)}</td>
              <td class="optional">${ago(session.lastActivity)}</td>
            </tr>`,
          ),
        ),
      )}
      ${nextCursor === null ? "" : html`<p class="note">These are the ${format.number(sessions.length)} sessions that lapse next. There are more.</p>`}
    `;
  }

  /** @param {Capacity} capacity */
  async #change(capacity) {
    const changed = await setCapacity(this.#view, capacity);
    if (changed !== null) this.#capacity.reload();
  }

  /** @param {Capacity} capacity */
  async #delete(capacity) {
    await confirm({
      title: "Delete the settings of this capacity?",
      body: html`<p>Its live sessions (${format.number(capacity.activeSessions)}) continue. From then on the capacity has no limit, and takes sessions of
        every tenant.</p>`,
      action: "Delete settings",
      run: async () => {
        await request("DELETE", `capacities/${part(this.#id)}`);
        notify("The settings are deleted.");
      },
    });
    this.#capacity.reload();
  }
}
