// @ts-check
/** One session: its history, its remaining time, and buttons that renew, hold or end the session. */

import { ApiError, part, request } from "../core/api.js";
import { serverNow } from "../core/clock.js";
import * as format from "../core/format.js";
import { held } from "../core/held.js";
import { html, keyed } from "../core/template.js";
import { ago, badge, countdown, id, instant, kind, loading, problem, section, state, tone } from "../parts/bits.js";
import { confirm } from "../parts/dialog.js";
import { notify } from "../parts/notice.js";
import { heldPanel } from "../parts/held.js";
import "../parts/charts/life.js";

const FACTS = 200;

/**
 * @typedef {import("../core/types.js").Session} Session
 * @typedef {import("../core/types.js").Fact} Fact
 * @typedef {{session: Session, facts: Fact[], nextCursor: string | null}} History
 */

export class SessionPage {
  static path = "sessions/:sessionId";
  static title = "Session";

  #view;
  #path;
  /** @type {import("../core/live.js").Watch<History>} */
  #history;
  /** The facts of later pages, which are loaded on demand. @type {Fact[]} */
  #more = [];
  /** @type {string | null | undefined} */
  #moreCursor = undefined;
  #isBusy = false;
  /** @type {unknown} */
  #error = null;
  #onHeld = () => this.#view.update();

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#path = `sessions/${part(view.params.sessionId ?? "")}`;
    const wanted = (view.params.sessionId ?? "").toLowerCase();
    this.#history = view.watch(
      () => ({ path: `${this.#path}/history`, query: { limit: FACTS } }),
      5_000,
      (event) => event.sessionId === wanted || event.previousSessionId === wanted,
    );
    held.addEventListener("change", this.#onHeld);
  }

  close() {
    held.removeEventListener("change", this.#onHeld);
  }

  render() {
    const history = this.#history.data;
    if (history === null) return this.#withoutData();
    const { session } = history;
    const end = history.facts.find(({ fact }) => fact === "ended");
    const isUnrecorded = end?.recorded === false;
    return html`
      <div class="page-head">
        <h1>Session <span class="mono">${format.shortId(session.sessionId)}</span></h1>
        ${isUnrecorded ? badge("over, not yet recorded", "warn") : state(session)} ${this.#actions(session)}
      </div>
      ${this.#error === null ? "" : problem(this.#error)}
      ${held.session?.sessionId === session.sessionId ? heldPanel(this.#view) : ""}
      <div class="columns">
        <div class="stack">${this.#ending(session, end, isUnrecorded)} ${this.#stream(session)}</div>
        ${section("Details", this.#facts(session))}
      </div>
      ${this.#story(history)}
    `;
  }

  #withoutData() {
    const error = this.#history.error;
    const isUnknown = error instanceof ApiError && (error.status === 404 || error.status === 400);
    return html`
      <div class="page-head"><h1>Session</h1></div>
      ${isUnknown
        ? html`<div class="empty">
            <p><strong>There is no session with this id.</strong></p>
            <p class="mono">${this.#view.params.sessionId}</p>
            <p>Closed sessions are deleted after 400 days. The session may also belong to a tenant that your key does not see.</p>
            <p><a href="${this.#view.href("sessions")}">All sessions</a></p>
          </div>`
        : error instanceof ApiError && error.status < 500
          ? problem(error)
          : loading()}
    `;
  }

  /** @param {Session} session */
  #actions(session) {
    if (!this.#view.may("client", "operator") || !session.isActive) return "";
    const isHeld = held.session?.sessionId === session.sessionId && held.isHeld;
    return html`<div class="actions">
      <button type="button" ?disabled=${this.#isBusy} @click=${() => void this.#heartbeat(session)}>Heartbeat</button>
      ${isHeld ? "" : html`<button type="button" ?disabled=${this.#isBusy} @click=${() => void this.#hold(session)}>Hold in this tab</button>`}
      <button type="button" class="quiet-danger" ?disabled=${this.#isBusy} @click=${() => void this.#end(session)}>End…</button>
    </div>`;
  }

  /** @param {Session} session @param {Fact | undefined} end @param {boolean} isUnrecorded */
  #ending(session, end, isUnrecorded) {
    const reason = session.closeReason ?? "";
    const title = session.isActive ? "Time left" : "End";
    const content = session.isActive
      ? html`<p class="big-count" role="timer">${countdown(session.leaseExpiresAt)}</p>
          <p class="note">If nothing renews the session, it ends at ${instant(session.leaseExpiresAt)}</p>`
      : html`<p class="big-count">${badge(isUnrecorded ? `${reason}, not yet recorded` : reason, tone(reason))}</p>
          <p class="note">${end ? sentenceOf(end.text) : format.REASONS[reason]} ${instant(session.sessionEndUtc)}, ${ago(session.sessionEndUtc)}</p>`;
    return section(title, html`${content}<tenure-life .session=${session}></tenure-life>`, { className: "ending" });
  }

  /** @param {Session} session */
  #facts(session) {
    const list = (/** @type {string} */ by, /** @type {string} */ value) => this.#view.href(`sessions?${by}=${part(value)}`);
    const full = (/** @type {string} */ label, /** @type {string} */ by, /** @type {string} */ value) =>
      id(value, { label, href: list(by, value), isShort: false });
    return html`<dl class="facts">
      <dt>Session</dt><dd>${id(session.sessionId, { label: "session id", isShort: false })}</dd>
      <dt>User</dt><dd>${full("user", "user", session.userObjectId)}</dd>
      <dt>Tenant</dt><dd>${full("tenant", "tenant", session.tenantObjectId)}</dd>
      <dt>Capacity</dt><dd>${this.#capacity(session.capacityId)}</dd>
      <dt>Kind</dt><dd>${kind(session.sessionKind)}</dd>
      <dt>Started</dt><dd>${instant(session.sessionStartUtc)}, ${ago(session.sessionStartUtc)}</dd>
      <dt>Last heartbeat</dt><dd>${instant(session.lastHeartbeat)}, ${ago(session.lastHeartbeat)}</dd>
      <dt>Last activity</dt><dd>${instant(session.lastActivity)}, ${ago(session.lastActivity)}</dd>
      <dt>Heartbeats</dt>
      <dd>${session.heartbeatInterval === null ? "not needed: the session has no lease" : `every ${format.number(session.heartbeatInterval)} s`}</dd>
    </dl>`;
  }

  /** @param {string} capacityId */
  #capacity(capacityId) {
    const path = this.#view.may("reader", "operator") ? `capacities/${part(capacityId)}` : `sessions?capacity=${part(capacityId)}`;
    return id(capacityId, { label: "capacity", href: this.#view.href(path), isShort: false });
  }

  /** @param {Session} session */
  #stream({ stream }) {
    if (stream === null) return "";
    return section(
      "Stream",
      html`<dl class="facts">
        <dt>Received</dt><dd>${format.number(stream.bytesReceived)} bytes in ${format.counted(stream.chunks, "message")}</dd>
        <dt>Sent</dt><dd>${format.counted(stream.messagesSent, "message")}</dd>
        ${stream.partialsSent + stream.finalsSent > 0
          ? html`<dt>Results</dt><dd>${format.number(stream.partialsSent)} partial, ${format.number(stream.finalsSent)} final</dd>`
          : ""}
        ${stream.audioDurationMs > 0 ? html`<dt>Audio</dt><dd>${format.duration(stream.audioDurationMs)}</dd>` : ""}
        <dt>Errors sent</dt><dd>${format.number(stream.errorsSent)}</dd>
      </dl>`,
    );
  }

  /** @param {History} history */
  #story({ facts, nextCursor }) {
    const cursor = this.#moreCursor === undefined ? nextCursor : this.#moreCursor;
    const all = [...facts, ...this.#more];
    return section(
      "Story",
      html`<ol class="story">
          ${all.map((fact, index) => keyed(`${index} ${fact.at} ${fact.fact}`, this.#fact(fact)))}
        </ol>
        ${cursor === null
          ? ""
          : html`<div class="pager"><button type="button" @click=${() => void this.#loadMore(cursor)}>More facts</button></div>`}`,
      {
        note: html`the same as <code>tenure explain</code>`,
        actions: html`<tenure-copy value="tenure explain ${this.#view.params.sessionId}" label="command"></tenure-copy>`,
      },
    );
  }

  /** @param {Fact} fact */
  #fact(fact) {
    const isFuture = Date.parse(fact.at) > serverNow();
    return html`<li class="fact ${toneOf(fact)} ${isFuture ? "is-future" : ""}">
      <time datetime="${fact.at}" title="${fact.at}">${format.dateTime(fact.at)}</time>
      <span class="fact-text">${fact.text} ${this.#links(fact)}</span>
    </li>`;
  }

  /** @param {Fact} fact */
  #links(fact) {
    const others = [fact.previousSessionId, fact.nextSessionId, ...(fact.sessionIds ?? [])].filter((each) => each !== undefined);
    return others.map((each) => html`<a class="mono" href="${this.#view.href(`sessions/${part(each)}`)}">${format.shortId(String(each))}</a> `);
  }

  /** @param {string} cursor */
  async #loadMore(cursor) {
    if (this.#isBusy) return; // a second click would load the same page twice
    await this.#act(async () => {
      const page = /** @type {History} */ (await request("GET", `${this.#path}/history`, { query: { limit: FACTS, cursor } }));
      this.#more = [...this.#more, ...page.facts];
      this.#moreCursor = page.nextCursor;
    });
  }

  /** @param {Session} session */
  async #heartbeat(session) {
    await this.#act(async () => {
      const answer = await request("POST", `${this.#path}/heartbeat`, { body: { active: false } });
      const isMoved = answer.leaseExpiresAt !== session.leaseExpiresAt;
      notify(isMoved ? `Renewed until ${format.time(answer.leaseExpiresAt)} UTC.` : "Acknowledged. The deadline did not move.");
    });
  }

  /** @param {Session} session */
  async #hold(session) {
    const { userObjectId, tenantObjectId, capacityId, sessionKind } = session;
    await this.#act(async () => {
      const opened = await held.begin({ userObjectId, tenantObjectId, capacityId, sessionKind });
      notify(opened.sessionId === session.sessionId ? "This tab keeps the session alive." : "The session was over: a new one was opened.");
    });
  }

  /** @param {Session} session */
  async #end(session) {
    const reason = this.#view.may("operator") ? "TERMINATED" : "STOPPED";
    const isEnded = await confirm({
      title: "End this session?",
      body: html`<p>The session ends at once, as <strong>${reason}</strong>. Its user loses the session, and its stream is closed. This cannot be undone.</p>
        <p class="mono small">${session.sessionId}</p>`,
      action: "End session",
      run: async () => {
        await request("DELETE", this.#path);
      },
    });
    if (!isEnded) return;
    notify("The session has ended.");
    this.#history.touch();
    void this.#history.load();
  }

  /**
   * Run an action, and show its error. Meanwhile the buttons next to the title are disabled.
   * @param {() => Promise<void>} action
   */
  async #act(action) {
    this.#isBusy = true;
    this.#error = null;
    this.#view.update();
    try {
      await action();
      void this.#history.load();
    } catch (error) {
      this.#error = error;
    } finally {
      this.#isBusy = false;
      this.#view.update();
    }
  }
}

/** @param {string} text */
function sentenceOf(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
}

const GOOD = new Set(["opened", "delivered", "upgradedTo", "upgradedFrom"]);
const BAD = new Set(["deliveryFailed", "deliveryGivenUp", "evictedFor"]);
const WARN = new Set(["deliveryWaits", "deliveryUnknown", "deliveryAbandoned", "windowsNotKept"]);

/** @param {Fact} fact */
function toneOf({ fact, closeReason, delivery }) {
  if (fact === "ended") return closeReason === undefined ? "quiet" : tone(closeReason);
  if (fact === "billed") return delivery === "delivered" ? "good" : "warn";
  return GOOD.has(fact) ? "good" : BAD.has(fact) ? "bad" : WARN.has(fact) ? "warn" : "quiet";
}
