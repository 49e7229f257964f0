// @ts-check
/**
 * `<tenure-time at="…">`: an instant relative to now, such as "12 s ago"; with `exact`, the time in UTC, with the date
 * unless the instant is today.
 * `<tenure-countdown at="…">`: the time until a deadline, by the server's clock. After the deadline it shows "over, not
 * yet recorded" until the page has read the recorded end. The title of both elements is the exact instant.
 */

import { serverNow } from "../core/clock.js";
import * as format from "../core/format.js";
import { startTicking, stopTicking } from "./element.js";

class Ticking extends HTMLElement {
  static observedAttributes = ["at", "exact"];

  connectedCallback() {
    startTicking(this);
    this.tick();
  }

  disconnectedCallback() {
    stopTicking(this);
  }

  attributeChangedCallback() {
    if (this.isConnected) this.tick();
  }

  tick() {
    const at = this.getAttribute("at");
    if (at === null || Number.isNaN(Date.parse(at))) {
      this.#show("–", "");
      return;
    }
    this.#show(this.textAt(Date.parse(at)), `${at.replace("T", " ").replace("Z", "")} UTC`);
  }

  /** @param {number} at @returns {string} */
  textAt(at) {
    return format.dateTime(at);
  }

  /** @param {string} text @param {string} title */
  #show(text, title) {
    if (this.textContent !== text) this.textContent = text;
    if (this.title !== title) this.title = title;
  }
}

class TenureTime extends Ticking {
  /** @param {number} at */
  textAt(at) {
    const now = serverNow();
    return this.hasAttribute("exact") ? format.shortTime(at, now) : format.ago(at, now);
  }
}

class TenureCountdown extends Ticking {
  /** @param {number} at */
  textAt(at) {
    const left = at - serverNow();
    this.classList.toggle("is-over", left <= 0);
    this.classList.toggle("is-soon", left > 0 && left < 15_000);
    const text = left <= 0 ? "over, not yet recorded" : format.countdown(left);
    if (left <= 0 && this.dataset.over !== "true") {
      this.dataset.over = "true";
      this.dispatchEvent(new CustomEvent("over", { bubbles: true }));
    } else if (left > 0) {
      delete this.dataset.over;
    }
    return text;
  }
}

/** `<tenure-clock>`: the server's time. */
class TenureClock extends HTMLElement {
  connectedCallback() {
    startTicking(this);
    this.tick();
  }

  disconnectedCallback() {
    stopTicking(this);
  }

  tick() {
    const text = `${format.time(serverNow())} UTC`;
    if (this.textContent !== text) this.textContent = text;
  }
}

customElements.define("tenure-time", TenureTime);
customElements.define("tenure-countdown", TenureCountdown);
customElements.define("tenure-clock", TenureClock);
