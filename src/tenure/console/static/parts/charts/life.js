// @ts-check
/**
 * `<tenure-life>` draws the life of the session in its property `session` as a line. The line shows the start, the
 * last activity, the last heartbeat, the present, and the deadline or the end. While the session is live, the line is
 * drawn again every second. The present is the time on the server's clock.
 */

import { serverNow } from "../../core/clock.js";
import * as format from "../../core/format.js";
import { html, svg } from "../../core/template.js";
import { observedWidth, startTicking, stopTicking, TenureElement } from "../element.js";

const HEIGHT = 58;
const EDGE = 10;
const LINE_Y = 24;
/** The time from now to the deadline takes at most this share of the line, so that the past stays readable. */
const FUTURE_MAX = 0.5;

class TenureLife extends TenureElement {
  /** @type {import("../../core/types.js").Session | null} */
  #session = null;
  #drawnAt = 0;
  #width = 320;
  #observer = observedWidth((width) => {
    this.#width = width;
    this.update();
  });

  connectedCallback() {
    super.connectedCallback();
    startTicking(this);
    this.#observer.observe(this);
  }

  disconnectedCallback() {
    stopTicking(this);
    this.#observer.disconnect();
  }

  tick() {
    if (Math.abs(serverNow() - this.#drawnAt) >= 1000 && this.#session?.isActive) this.update();
  }

  get session() {
    return this.#session;
  }

  set session(session) {
    this.#session = session;
    this.update();
  }

  template() {
    const session = this.#session;
    if (session === null) return "";
    const width = this.#width;
    const now = serverNow();
    this.#drawnAt = now;
    const start = Date.parse(session.sessionStartUtc);
    const end = Date.parse(session.isActive ? session.leaseExpiresAt : session.sessionEndUtc);
    const isOver = !session.isActive || now >= end;
    const past = Math.max(1, (isOver ? end : now) - start);
    const future = isOver ? 0 : end - now;
    const futureShare = isOver ? 0 : Math.min(FUTURE_MAX, future / (past + future));
    const inner = width - 2 * EDGE;
    const nowX = EDGE + inner * (1 - futureShare);
    const x = (/** @type {number} */ at) =>
      at <= now || isOver
        ? EDGE + Math.min(1, Math.max(0, (at - start) / past)) * (nowX - EDGE)
        : nowX + Math.min(1, (at - now) / Math.max(1, future)) * (width - EDGE - nowX);
    const beat = Date.parse(session.lastHeartbeat);
    const active = Date.parse(session.lastActivity);
    return html`<svg
      class="life"
      viewBox="0 0 ${width} ${HEIGHT}"
      width="${width}"
      height="${HEIGHT}"
      role="img"
      aria-label="${describe(session, now)}"
    >
      <line class="lived" x1="${EDGE}" x2="${nowX}" y1="${LINE_Y}" y2="${LINE_Y}"></line>
      ${isOver ? "" : svg`<line class="left" x1="${nowX}" x2="${width - EDGE}" y1="${LINE_Y}" y2="${LINE_Y}"></line>`}
      <circle class="start" cx="${EDGE}" cy="${LINE_Y}" r="5"></circle>
      ${active > start ? svg`<circle class="activity" cx="${x(active)}" cy="${LINE_Y}" r="4"><title>last activity</title></circle>` : ""}
      ${beat > start ? svg`<path class="beat" d="M${x(beat)} ${LINE_Y - 9}v18"><title>last heartbeat</title></path>` : ""}
      ${isOver ? "" : svg`<circle class="now" cx="${nowX}" cy="${LINE_Y}" r="6"></circle>`}
      <path class="end ${session.isActive ? "" : "is-recorded"}" d="M${width - EDGE} ${LINE_Y - 10}v20"></path>
      <text x="${EDGE - 5}" y="${HEIGHT - 6}">${format.shortTime(start, now)}</text>
      <text x="${width - EDGE + 5}" y="${HEIGHT - 6}" text-anchor="end">${format.shortTime(end, now)}</text>
    </svg>`;
  }
}

/** @param {import("../../core/types.js").Session} session @param {number} now */
function describe(session, now) {
  const start = `Opened ${format.dateTime(session.sessionStartUtc)} UTC`;
  if (!session.isActive) return `${start}, ended ${format.dateTime(session.sessionEndUtc)} UTC.`;
  const end = `${format.dateTime(session.leaseExpiresAt)} UTC`;
  return Date.parse(session.leaseExpiresAt) <= now ? `${start}, over since ${end}.` : `${start}, lives until ${end}.`;
}

customElements.define("tenure-life", TenureLife);
