// @ts-check
/**
 * `<tenure-table>`: a table whose rows do not move while it is in use, that is, while it has the pointer or the focus.
 * Otherwise the rows follow the data. While the table is in use, each row keeps its place and shows its newest values,
 * a row that has left the list is marked, and new rows are not shown yet. A button says how many rows came or went,
 * or that the order changed. The current list is shown when the button is pressed, or when the pointer and the focus
 * leave the table. The result of an action, a filter or another page is shown at once.
 */

import { acted } from "../core/api.js";
import * as format from "../core/format.js";
import { html, Template } from "../core/template.js";
import { TenureElement } from "./element.js";

/** For this time after an action, the rows follow the data even if the table is in use. */
const ACTION_MS = 5_000;

/** @param {unknown} row @param {number} index @returns {any} */
const keyOf = (row, index) => (row instanceof Template && row.key !== undefined ? row.key : index);

class TenureTable extends TenureElement {
  /** @type {unknown[]} */
  #latest = [];
  /** The rows that are shown, by key, in order. @type {Map<any, unknown>} */
  #shown = new Map();
  #isPointedAt = false;
  caption = "";
  /** @type {unknown[]} */
  headings = [];

  constructor() {
    super();
    // With touch there is no hovering: a row that is tapped gets the focus instead.
    this.addEventListener("pointerenter", (event) => (this.#isPointedAt = event.pointerType !== "touch"));
    this.addEventListener("pointerleave", () => {
      this.#isPointedAt = false;
      this.#release();
    });
    this.addEventListener("focusout", () => setTimeout(() => this.#release()));
  }

  get #isInUse() {
    const focused = document.activeElement;
    return this.#isPointedAt || (focused !== this.#scroller && this.contains(focused));
  }

  /** The region that scrolls. If it has the focus itself, the table is not in use: no row was chosen. */
  get #scroller() {
    return this.querySelector(".table");
  }

  #release() {
    if (this.#isBehind && !this.#isInUse) this.update();
  }

  /** Whether the list has changed since it was shown: its rows, or their order. */
  get #isBehind() {
    const latest = this.#latest.map(keyOf);
    const shown = [...this.#shown.keys()];
    return latest.length !== shown.length || latest.some((key, index) => key !== shown[index]);
  }

  /** @param {unknown[]} rows */
  set rows(rows) {
    this.#latest = rows;
    this.update();
  }

  /** The number of rows that came or went while the table was in use. */
  get #changes() {
    const latest = new Set(this.#latest.map(keyOf));
    const gone = [...this.#shown.keys()].filter((key) => !latest.has(key)).length;
    return gone + [...latest].filter((key) => !this.#shown.has(key)).length;
  }

  /** Show the current list. */
  #show() {
    this.#shown = new Map(this.#latest.map((row, index) => [keyOf(row, index), row]));
  }

  template() {
    const isHeld = this.#shown.size > 0 && this.#isInUse && performance.now() > acted.at + ACTION_MS;
    const latest = new Map(this.#latest.map((row, index) => [keyOf(row, index), row]));
    if (isHeld) for (const key of this.#shown.keys()) this.#shown.set(key, latest.get(key) ?? this.#shown.get(key));
    else this.#show();
    queueMicrotask(() => this.#mark(latest));
    return html`
      ${this.#isBehind ? this.#button() : ""}
      <div class="table" role="region" aria-label="${this.caption}" tabindex="0">
        <table>
          <caption class="off-screen">${this.caption}</caption>
          <thead><tr>${this.headings}</tr></thead>
          <tbody>${[...this.#shown.values()]}</tbody>
        </table>
      </div>
    `;
  }

  #button() {
    const changes = this.#changes;
    const text = changes === 0 ? "Order changed" : format.counted(changes, "change");
    return html`<button type="button" class="changes" @click=${() => this.#showNow()}>${text} · Show</button>`;
  }

  /** Mark the rows that have left. @param {Map<unknown, unknown>} latest */
  #mark(latest) {
    const rows = this.querySelectorAll("tbody > tr");
    [...this.#shown.keys()].forEach((key, index) => {
      const row = rows[index];
      const isGone = !latest.has(key);
      if (row === undefined || row.hasAttribute("data-gone") === isGone) return;
      row.toggleAttribute("data-gone", isGone);
      if (isGone) row.setAttribute("title", "No longer in this list");
      else row.removeAttribute("title");
    });
  }

  #showNow() {
    this.#show();
    this.update();
    // Move the focus, because the button that has it will be removed.
    const scroller = this.#scroller;
    if (scroller instanceof HTMLElement) scroller.focus({ preventScroll: true });
  }
}

customElements.define("tenure-table", TenureTable);
